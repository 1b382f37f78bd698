//! The test programs that cargo built, as its JSON messages name them, and the tests in
//! them, as each program lists them. Owns no process longer than a listing takes.

use crate::options::Options;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// What people call it: `files` for the units of a library, `rdma-cp` for those of a
    /// command, `fabric/tcp` for a program of a package's tests, `sync` for one of
    /// `verbatim-tests`.
    pub name: String,
    pub executable: PathBuf,
    /// The package's folder: where its tests run, as with `cargo test`.
    pub folder: PathBuf,
}

/// One test of a program.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub program: Arc<Program>,
    pub name: String,
}

impl Test {
    /// Program and name: what `--only` looks in, and what reports print.
    pub fn full_name(&self) -> String {
        format!("{} {}", self.program.name, self.name)
    }
}

/// What there is to run.
pub(crate) struct Listing {
    pub tests: Vec<Test>,
    /// How many tests cargo ignores, by program.
    pub ignored: BTreeMap<String, usize>,
    /// How many tests are left to a whole run.
    pub left_out: usize,
}

/// The test programs among the messages of `cargo build --message-format=json`.
pub(crate) fn of_cargo(messages: &str) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line)
            .map_err(|error| format!("not a message of cargo: {error}"))?;
        if message["profile"]["test"] == true && message["executable"].is_string() {
            programs.push(of_message(&message).ok_or_else(|| format!("cannot read {line}"))?);
        }
    }
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(programs)
}

fn of_message(message: &Value) -> Option<Program> {
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = package_name(message["package_id"].as_str()?);
    let package = package.strip_prefix("verbatim-").unwrap_or(package);
    let target = message["target"]["name"].as_str()?;
    let name = match message["target"]["kind"][0].as_str()? {
        "lib" => package.to_owned(),
        "bin" => target.to_owned(),
        _ if package == "tests" => target.to_owned(),
        _ => format!("{package}/{target}"),
    };
    let executable = message["executable"].as_str()?.into();
    Some(Program { name, executable, folder })
}

/// The package in an identity such as `path+file:///there/common/files#verbatim-files@0.1.0`, or
/// `path+file:///there/server#0.1.0`, where the folder has the package's name.
fn package_name(identity: &str) -> &str {
    let (path, fragment) = identity.split_once('#').unwrap_or((identity, ""));
    match fragment.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

/// Lists the tests of these programs that the options select.
pub(crate) fn list(programs: &[&Program], options: &Options) -> Result<Listing, String> {
    let mut long = match &options.long {
        Some(path) => read_long(path)?,
        None => BTreeSet::new(),
    };
    let mut listing = Listing { tests: Vec::new(), ignored: BTreeMap::new(), left_out: 0 };
    for &program in programs {
        let ignored = names(program, &["--ignored"])?;
        let named = Arc::new(program.clone());
        for name in names(program, &[])? {
            let test = Test { program: named.clone(), name };
            let full_name = test.full_name();
            let is_long = long.remove(&full_name);
            if !options.only.is_empty() && !options.only.iter().any(|it| full_name.contains(it)) {
                continue;
            }
            if ignored.contains(&test.name) {
                *listing.ignored.entry(program.name.clone()).or_default() += 1;
            } else if is_long && !options.with_long && options.only.is_empty() {
                listing.left_out += 1;
            } else {
                listing.tests.push(test);
            }
        }
    }
    let known: BTreeSet<&str> = programs.iter().map(|program| program.name.as_str()).collect();
    let stale = |it: &&String| it.split_once(' ').is_some_and(|(name, _)| known.contains(name));
    match long.iter().find(stale) {
        Some(stale) => Err(format!("the list of long tests names {stale:?}, and there is none")),
        None => Ok(listing),
    }
}

fn read_long(path: &Path) -> Result<BTreeSet<String>, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let lines = text.lines().map(str::trim).filter(|it| !it.is_empty() && !it.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

fn names(program: &Program, more: &[&str]) -> Result<Vec<String>, String> {
    let cannot = |why: String| format!("{} does not list its tests: {why}", program.name);
    let mut command = command(program);
    command.args(["--list", "--format", "terse"]).args(more);
    let output = command.output().map_err(|error| cannot(error.to_string()))?;
    if !output.status.success() {
        return Err(cannot(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// A command that runs a test program as `cargo test` would.
pub(crate) fn command(program: &Program) -> Command {
    let mut command = Command::new(&program.executable);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as cargo 1.95 prints it, shortened.
    fn message(package: &str, kind: &str, target: &str, test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"path+file:///x/{package}",
            "manifest_path":"/x/it/Cargo.toml","target":{{"kind":["{kind}"],"name":"{target}"}},
            "profile":{{"test":{test}}},"executable":"/x/target/{target}-1"}}"#
        )
        .replace('\n', " ")
    }

    #[test]
    fn programs_are_called_by_package_and_target() {
        let messages = [
            message("common/files#verbatim-files@0.1.0", "lib", "verbatim_files", true),
            message("client#verbatim-client@0.1.0", "bin", "rdma-cp", true),
            message("client#verbatim-client@0.1.0", "bin", "rdma-sync", false),
            message("common/fabric#verbatim-fabric@0.1.0", "test", "tcp", true),
            message("tests#verbatim-tests@0.1.0", "test", "sync", true),
            "   Compiling something".to_owned(),
        ];
        let programs = of_cargo(&messages.join("\n")).expect("messages");
        let names: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["fabric/tcp", "files", "rdma-cp", "sync"]);
        assert_eq!(programs[1].executable, Path::new("/x/target/verbatim_files-1"));
        assert_eq!(programs[1].folder, Path::new("/x/it"));
    }

    #[test]
    fn a_package_is_named_by_its_identity_or_its_folder() {
        assert_eq!(
            package_name("path+file:///x/common/files#verbatim-files@0.1.0"),
            "verbatim-files"
        );
        assert_eq!(package_name("path+file:///x/verbatim-files#0.1.0"), "verbatim-files");
    }
}
