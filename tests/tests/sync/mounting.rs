//! Small file systems that a test mounts for itself and takes down again. None
//! where that is not allowed, or what makes them is missing: the test says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Something that is mounted, until this is dropped.
pub(crate) struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        run(Command::new("umount").arg("-l").arg(&self.0));
    }
}

/// Mounts an empty file system in memory, of this many bytes.
pub(crate) fn tmpfs(at: &Path, bytes: u64) -> Option<Mount> {
    let size = format!("size={bytes}");
    mount(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "verbatim-test"]), at)
}

/// Mounts an empty file system in memory that has no attributes.
pub(crate) fn ramfs(at: &Path) -> Option<Mount> {
    mount(Command::new("mount").args(["-t", "ramfs", "verbatim-test"]), at)
}

/// Makes a file system in a file, and mounts it.
pub(crate) fn image(file: &Path, make: &str, flags: &[&str], at: &Path) -> Option<Mount> {
    // Sparse, and large enough for every one of them.
    fs::File::create(file).and_then(|file| file.set_len(400 << 20)).expect("a sparse file");
    run(Command::new(make).args(flags).arg(file)).then_some(())?;
    mount(Command::new("mount").args(["-o", "loop"]).arg(file), at)
}

/// Mounts a file system that takes names of different case for one, and makes a folder in it:
/// ext4 where the kernel can, else NTFS, which a program does.
pub(crate) fn folding(file: &Path, at: &Path, folder: &Path) -> Option<Mount> {
    let flags = ["-q", "-O", "casefold", "-E", "encoding=utf8"];
    if let Some(mount) = image(file, "mkfs.ext4", &flags, at) {
        fs::create_dir_all(folder).expect("a folder");
        return run(Command::new("chattr").arg("+F").arg(folder)).then_some(mount);
    }
    fs::File::create(file).and_then(|file| file.set_len(16 << 20)).expect("a sparse file");
    run(Command::new("mkntfs").args(["-F", "-Q", "-q"]).arg(file)).then_some(())?;
    let mount =
        mount(Command::new("lowntfs-3g").args(["-o", "ignore_case,permissions"]).arg(file), at);
    fs::create_dir_all(folder).expect("a folder");
    mount
}

/// Mounts an overlay of a folder, with what changes in `upper`.
pub(crate) fn overlay(lower: &Path, upper: &Path, at: &Path) -> Option<Mount> {
    let [changes, work] = ["changes", "work"].map(|name| upper.join(name));
    for path in [&changes, &work] {
        fs::create_dir_all(path).expect("a folder");
    }
    let [lower, changes, work] = [lower, &changes, &work].map(Path::display);
    let options = format!("redirect_dir=off,lowerdir={lower},upperdir={changes},workdir={work}");
    mount(Command::new("mount").args(["-t", "overlay", "-o", &options, "verbatim-test"]), at)
}

fn mount(command: &mut Command, at: &Path) -> Option<Mount> {
    fs::create_dir_all(at).expect("a folder");
    run(command.arg(at)).then(|| Mount(at.to_owned()))
}

fn run(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}
