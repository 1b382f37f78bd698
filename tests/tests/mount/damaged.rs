//! A cache that was damaged while nothing was mounted: files cut, longer, flipped,
//! swapped, old, replaced by links and fifos, of another user, or gone. Whatever was
//! done to it, a read gives the bytes of the source, or EIO where the server is away
//! too; the cache is good again afterwards, and no file outside of it is touched. The
//! damage is sampled: SEED=N runs one sample alone, VERBATIM_TRIALS=N so many times as
//! many.

use super::reading::files_of;
use super::*;
use std::collections::BTreeSet;
use std::os::unix::fs::{FileExt, chown, symlink};
use verbatim_tests::dice::Dice;
use verbatim_tests::process::trials;

const MIB: usize = 1 << 20;

/// Samples, each of so many damages; each is mounted in every way.
const SAMPLES: u64 = 8;
const DAMAGES: usize = 25;

/// Files of each folder: for each size two, which differ in nothing but their bytes.
const SIZES: [usize; 8] = [0, 1, 25, 4096, 5000, 70_000, MIB, MIB + 77];

/// What the source holds, by name.
type Tree = Vec<(String, Vec<u8>)>;

fn tree(generation: u64) -> Tree {
    let mut tree = Tree::new();
    for (folder, name) in ["a", "b"].iter().enumerate() {
        for (at, size) in SIZES.iter().enumerate() {
            for copy in 0..2 {
                let seed = (folder * 100 + at * 2 + copy) as u64;
                // Every other file stays what it was.
                let seed = seed + 1000 * generation * (copy as u64);
                let mut content = noise(*size, seed);
                // The cache has a hole in the larger ones.
                if *size >= 70_000 {
                    content[size / 4..size / 2].fill(0);
                }
                tree.push((format!("{name}/f{at}.{copy}"), content));
            }
        }
    }
    tree
}

/// Writes the files, all with the same time.
fn write(dir: &Path, tree: &Tree) {
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for (name, content) in tree {
        let path = dir.join(name);
        fs::write(&path, content).expect("writes");
        let file = fs::OpenOptions::new().write(true).open(&path).expect("opens");
        file.set_modified(time).expect("sets");
    }
}

/// A cache with all of the source in it, and the same cache before the source changed.
struct Kept {
    now: TempDir,
    old: TempDir,
    /// The data files, in an order that is the same in every run.
    data: Vec<PathBuf>,
    names: Vec<PathBuf>,
    /// The files beside the folders: locks, the number of bytes, and whose cache it is.
    tops: Vec<PathBuf>,
}

impl Kept {
    fn of(now: TempDir, old: TempDir) -> Self {
        let within = |paths: Vec<PathBuf>| -> Vec<PathBuf> {
            let inner = |path: PathBuf| path.strip_prefix(now.path()).expect("inside").to_owned();
            paths.into_iter().map(inner).collect()
        };
        let mut data = within(files_of(now.path(), "data"));
        data.sort_by_key(|path| fs::read(now.path().join(path)).expect("reads"));
        let mut names = within(files_of(now.path(), "names"));
        names.sort_by_key(|path| fs::metadata(now.path().join(path)).expect("is there").len());
        let entries = fs::read_dir(now.path()).expect("lists").flatten().map(|it| it.path());
        let mut tops = within(entries.filter(|path| path.is_file()).collect());
        tops.sort();
        Self { now, old, data, names, tops }
    }

    /// A file to damage: mostly of the content.
    fn pick(&self, dice: &mut Dice, names: bool) -> PathBuf {
        let of = |paths: &[PathBuf], dice: &mut Dice| paths[dice.below(paths.len())].clone();
        match dice.below(10) {
            7 | 8 if names => of(&self.names, dice),
            9 if names => of(&self.tops, dice),
            3..=5 => of(&self.data, dice).with_extension("journal"),
            _ => of(&self.data, dice),
        }
    }

    /// Another of the same kind.
    fn like(&self, dice: &mut Dice, path: &Path) -> PathBuf {
        let kind = path.extension().and_then(OsStr::to_str);
        let all = match kind {
            Some("data" | "journal") => &self.data,
            Some("names") => &self.names,
            _ => &self.tops,
        };
        let other = &all[dice.below(all.len())];
        if kind == Some("journal") { other.with_extension("journal") } else { other.clone() }
    }
}

/// What was done to a copy of a cache.
struct Damage<'a> {
    kept: &'a Kept,
    at: &'a Path,
    /// Where the links lead, and what is there.
    outside: &'a Path,
    victims: Vec<(PathBuf, Vec<u8>)>,
    touched: BTreeSet<PathBuf>,
    done: Vec<String>,
}

impl Damage<'_> {
    /// Damages something in some way; whether it could.
    fn harm(&mut self, dice: &mut Dice, names: bool) -> bool {
        let file = self.kept.pick(dice, names);
        let other = self.kept.like(dice, &file);
        let (path, beside) = (self.at.join(&file), self.at.join(&other));
        let notes = |path: &Path| path.with_extension("journal");
        let is_data = file.extension() == Some(OsStr::new("data"));
        let way = dice.below(12);
        let swaps = matches!(way, 3 | 4);
        let mut touches = vec![file.clone()];
        touches.extend(swaps.then(|| other.clone()));
        if way == 4 {
            touches.extend([notes(&file), notes(&other)]);
        }
        let is_odd = swaps && file == other || way == 4 && !is_data;
        if is_odd || touches.iter().any(|it| self.touched.contains(it)) {
            return false;
        }
        let what = match way {
            0 => self.append(dice, &path),
            1 => self.cut(dice, &path),
            2 => self.flip(dice, &path),
            3 => swap(&path, &beside),
            4 => {
                swap(&path, &beside);
                swap(&notes(&path), &notes(&beside));
                "swapped with its notes"
            }
            5 | 6 => self.link(way == 5, &path),
            7 => give_away(&path),
            8 | 9 => self.make_old(&file),
            10 => {
                fs::remove_file(&path).expect("removes");
                "removed"
            }
            _ => make_fifo(&path),
        };
        if what.is_empty() {
            return false;
        }
        self.done.push(format!("{} {what}", file.display()));
        self.touched.extend(touches);
        true
    }

    fn append(&self, dice: &mut Dice, path: &Path) -> &'static str {
        let mut bytes = fs::read(path).expect("reads");
        bytes.extend(noise(1 + dice.below(9000), dice.roll() as u64));
        fs::write(path, bytes).expect("writes");
        "appended to"
    }

    fn cut(&self, dice: &mut Dice, path: &Path) -> &'static str {
        let file = fs::OpenOptions::new().write(true).open(path).expect("opens");
        let len = file.metadata().expect("is there").len() as usize;
        file.set_len(dice.below(len.max(1)) as u64).expect("cuts");
        if len > 0 { "cut" } else { "" }
    }

    fn flip(&self, dice: &mut Dice, path: &Path) -> &'static str {
        let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("opens");
        let len = file.metadata().expect("is there").len() as usize;
        if len == 0 {
            return "";
        }
        let (at, mut byte) = (dice.below(len) as u64, [0]);
        file.read_exact_at(&mut byte, at).expect("reads");
        file.write_all_at(&[byte[0] ^ 1 << dice.below(8)], at).expect("flips");
        "flipped"
    }

    /// Puts a link in the place of a file, to one outside that begins as this one did.
    fn link(&mut self, symbolic: bool, path: &Path) -> &'static str {
        let victim = self.outside.join(format!("{}", self.victims.len()));
        let mut bytes = fs::read(path).expect("reads");
        bytes.extend(noise(7000, 3));
        fs::write(&victim, &bytes).expect("writes");
        fs::remove_file(path).expect("removes");
        match symbolic {
            true => symlink(&victim, path).expect("links"),
            false => fs::hard_link(&victim, path).expect("links"),
        }
        self.victims.push((victim, bytes));
        if symbolic { "replaced by a link" } else { "replaced by another name of a file" }
    }

    /// Puts what was there before the source changed in the place of data or of notes; not of
    /// both, which would be a good cache of then.
    fn make_old(&self, file: &Path) -> &'static str {
        let old = self.kept.old.path().join(file);
        let is_content = ["data", "journal"].map(OsStr::new).map(Some).contains(&file.extension());
        let both = [file.with_extension("data"), file.with_extension("journal")];
        if !is_content || !old.exists() || both.iter().any(|it| self.touched.contains(it)) {
            return "";
        }
        fs::copy(old, self.at.join(file)).expect("copies");
        "replaced by an old one"
    }
}

fn swap(one: &Path, other: &Path) -> &'static str {
    let aside = one.with_extension("aside");
    fs::rename(one, &aside).expect("renames");
    fs::rename(other, one).expect("renames");
    fs::rename(&aside, other).expect("renames");
    "swapped"
}

/// Makes a file that of another user, with other bytes.
fn give_away(path: &Path) -> &'static str {
    if chown(path, Some(65_534), Some(65_534)).is_err() {
        return "";
    }
    "given to another user"
}

fn make_fifo(path: &Path) -> &'static str {
    fs::remove_file(path).expect("removes");
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
    assert!(made.success());
    "replaced by a fifo"
}

/// Copies a cache with its links, owners and times.
fn copy(from: &Path) -> TempDir {
    let to = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("cp");
    command.arg("-a").arg(from.join(".")).arg(to.path());
    assert!(command.status().expect("cp runs").success());
    to
}

/// Reads all of the tree, the second time what the kernel may read by itself. Says what was wrong:
/// other bytes, or an error; EIO is one only of files that `must` be readable.
fn look(at: &Path, tree: &Tree, must: impl Fn(&[u8]) -> bool) -> Result<(), String> {
    for folder in ["", "a", "b"] {
        let names = fs::read_dir(at.join(folder)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let expected = if folder.is_empty() { 2 } else { 2 * SIZES.len() + 1 };
        match names {
            Ok(names) if names.len() == expected => {}
            Ok(names) => return Err(format!("{} names in {folder:?}", names.len())),
            Err(error) if errno(&error) == EIO && !must(&[]) => {}
            Err(error) => return Err(format!("{folder:?}: {error}")),
        }
    }
    for folder in ["a", "b"] {
        match fs::read_link(at.join(folder).join("link")) {
            Ok(target) if target == Path::new("to").join(folder) => {}
            Ok(target) => return Err(format!("the link of {folder} leads to {target:?}")),
            Err(error) if errno(&error) == EIO && !must(&[]) => {}
            Err(error) => return Err(format!("the link of {folder}: {error}")),
        }
    }
    for (name, content) in tree.iter().chain(tree) {
        let path = at.join(name);
        let read = fs::metadata(&path).and_then(|meta| Ok((meta.len(), fs::read(&path)?)));
        match read {
            Ok((len, bytes)) if len == content.len() as u64 && bytes == *content => {}
            Ok((len, bytes)) => {
                let same = bytes.iter().zip(content).take_while(|(one, other)| one == other);
                let text = format!(
                    "{name}: stat says {len}, read returns {} bytes, of which the first {} are \
                     right; the file has {}",
                    bytes.len(),
                    same.count(),
                    content.len()
                );
                return Err(text);
            }
            Err(error) if errno(&error) == EIO && !must(content) => {}
            Err(error) => return Err(format!("{name}: {error}")),
        }
    }
    Ok(())
}

/// A source whose cache is kept, and the caches.
fn prepare() -> (Source, Kept) {
    let source = Source::new(|dir| {
        for folder in ["a", "b"] {
            fs::create_dir(dir.join(folder)).expect("makes");
            symlink(format!("to/{folder}"), dir.join(folder).join("link")).expect("links");
        }
        write(dir, &tree(0));
    });
    std::thread::sleep(SETTLED);
    let cache = Arc::new(tempfile::tempdir().expect("a folder"));
    let read = |generation| {
        let mounted = source.mount_with(&cache, &[]);
        look(&mounted.path(""), &tree(generation), |_| true).expect("is as the source");
        mounted.end();
        copy(cache.path())
    };
    let old = read(0);
    write(source.dir.path(), &tree(1));
    std::thread::sleep(SETTLED);
    let now = read(1);
    (source, Kept::of(now, old))
}

/// Damages a copy of the cache and reads the tree through it.
fn sample(source: &Source, from: Option<&str>, kept: &Kept, seed: u64, arguments: &[&str]) {
    let (cache, outside) =
        (Arc::new(copy(kept.now.path())), tempfile::tempdir().expect("a folder"));
    let (at, outside) = (cache.path().to_owned(), outside.path());
    let (victims, touched, done) = Default::default();
    let mut damage = Damage { kept, at: &at, outside, victims, touched, done };
    let mut dice = Dice::new("damaged cache", seed);
    // Every other sample leaves names alone: then whatever was not touched must be readable.
    let names = seed.is_multiple_of(2);
    while damage.done.len() < DAMAGES {
        damage.harm(&mut dice, names);
    }
    let context = format!("SEED={seed} {arguments:?}\n{}", damage.done.join("\n"));
    let mounted = match from {
        None => source.mount_with(&cache, arguments),
        Some(from) => {
            // Without it nobody knows whose cache it is, and nothing is mounted.
            let whose = kept.tops.iter().find(|it| it.to_string_lossy().starts_with("server-"));
            let whose = whose.expect("it is kept");
            if damage.touched.contains(whose) {
                let _ = fs::remove_file(at.join(whose));
                fs::copy(kept.now.path().join(whose), at.join(whose)).expect("copies");
            }
            Mounted::start(&source.home, from, &cache, arguments)
        }
    };
    let touched: Vec<Vec<u8>> = kept
        .data
        .iter()
        .filter(|data| {
            damage.touched.contains(*data)
                || damage.touched.contains(&data.with_extension("journal"))
        })
        .map(|data| fs::read(kept.now.path().join(data)).expect("reads"))
        .collect();
    let online = from.is_none();
    let must = |content: &[u8]| online || !names && !touched.iter().any(|it| it == content);
    let tree = tree(1);
    let read = look(&mounted.path(""), &tree, must);
    let status = mounted.status();
    assert_eq!(read, Ok(()), "{context}\n{status}");
    let past = &status["passthrough"];
    // Without the names of the root nothing can be opened.
    let opens = past["opens"].as_u64() > Some(0);
    assert!(past["used"] == false || opens || !must(&[]), "{context}\n{status}");
    mounted.end();
    for (victim, bytes) in &damage.victims {
        assert!(fs::read(victim).expect("is there") == *bytes, "a file outside: {context}");
    }
    if online && arguments.is_empty() {
        // All of it is here again, content and names: nothing blocks its place.
        let from = source.serve().at("data");
        let mounted = Mounted::start(&source.home, &from, &cache, &["--offline"]);
        assert_eq!(look(&mounted.path(""), &tree, |_| true), Ok(()), "again: {context}");
        mounted.end();
    }
}

#[test]
fn a_cache_damaged_in_any_way_gives_right_bytes_or_an_error_without_the_server() {
    let test = "a_cache_damaged_in_any_way_gives_right_bytes_or_an_error_without_the_server";
    if !can_mount(test) {
        return;
    }
    let only = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    let seeds: Vec<u64> = only.map_or_else(|| (1..=trials(SAMPLES)).collect(), |seed| vec![seed]);
    let (mut source, kept) = prepare();
    let from = source.serve().at("data");
    for &seed in &seeds {
        sample(&source, None, &kept, seed, &[]);
        sample(&source, None, &kept, seed, &["--no-passthrough"]);
    }
    source.kill();
    for &seed in &seeds {
        sample(&source, Some(&from), &kept, seed, &["--offline"]);
        sample(&source, Some(&from), &kept, seed, &["--offline", "--no-passthrough"]);
    }
}
