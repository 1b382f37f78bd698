//! Quickstart: a server and a client in one process, a data set that is made up,
//! and a copy of it down and back up, every byte verified. Run it with
//! `cargo run --release --example quickstart`; it takes well under a minute, needs
//! about 4 GiB of free disk in the temporary folder, and removes what it made. At
//! its end it prints the same for two machines. Two numbers as arguments make the
//! checkpoint another size, in MiB, and the small files fewer: for slow machines.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use verbatim_client::model::location::Remote;
use verbatim_client::{
    CarrierOptions, CopyOptions, CopyPolicy, Failure, FileDone, Location, Observer, Progress,
    SessionOptions, Summary, copy,
};
use verbatim_control::ConnectOptions;
use verbatim_proto::WirePath;
use verbatim_proto::units::CHUNK_BYTES_DEFAULT;
use verbatim_server::config::Config;
use verbatim_server::config::export::{Export, Mode};
use verbatim_server::{Server, ServerOptions};

/// How large the checkpoint is, where there is room.
const CHECKPOINT_BYTES: u64 = 1 << 30;

/// The data set is there three times: made, fetched, and sent back; and a disk should not be
/// filled to its end.
const COPIES: u64 = 4;

/// Small files, if nothing else is asked for, in this many folders, each of about this many bytes.
const SMALL_FILES: usize = 10_000;
const SMALL_FOLDERS: usize = 100;
const SMALL_BYTES: usize = 4096;

/// Content is made a block at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// How much is made.
#[derive(Clone, Copy)]
struct Sizes {
    checkpoint_bytes: u64,
    small_files: usize,
}

impl Sizes {
    /// About how many bytes that is.
    fn bytes(&self) -> u64 {
        self.checkpoint_bytes + (self.small_files * SMALL_BYTES) as u64
    }
}

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Digests as text, by path below the data set.
type Digests = BTreeMap<String, String>;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(quickstart())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn quickstart() -> Outcome<()> {
    let dir = tempfile::Builder::new().prefix("verbatim-quickstart-").tempdir()?;
    let (export, fetched) = (dir.path().join("export"), dir.path().join("fetched"));
    fs::create_dir(&export)?;
    fs::create_dir(&fetched)?;
    let sizes = fit(wanted_sizes()?, dir.path())?;

    println!("1. Making a data set in {}", export.display());
    let begin = Instant::now();
    let made = make_data_set(&export.join("set"), sizes)?;
    let checkpoint = size(sizes.checkpoint_bytes as f64);
    println!("   a checkpoint of {checkpoint} and {} small files", sizes.small_files);
    println!("   made and hashed in {:.1} s", begin.elapsed().as_secs_f64());

    let config = Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        state: dir.path().join("state"),
        exports: vec![Export::new("data", &export, Mode::ReadWrite)?],
        ..Config::default()
    };
    let server = Server::bind(config, ServerOptions::default()).await?;
    let address = server.address();
    println!("2. Serving it on {address}, as {}", server.fingerprint());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async { drop(stopped.await) }));

    println!("3. Copying it down: rdma-cp -r rdma://{address}/data/set fetched");
    let local = Location::Local(fetched.join("set"));
    let remote = |path: &str| -> Outcome<Location> {
        let path = WirePath::parse(path.as_bytes())?;
        let (host, port) = (address.ip().to_string(), address.port());
        Ok(Location::Remote(Remote { host, port, path, is_folder: false, contents: false }))
    };
    let options = session(address, dir.path());
    let down = transfer(remote("data/set")?, local.clone(), sizes.bytes(), options.clone()).await?;

    println!("4. Copying it back up: rdma-cp -r fetched/set rdma://{address}/data/returned");
    let up = transfer(local, remote("data/returned")?, sizes.bytes(), options).await?;
    drop(stop);
    serving.await?;

    println!("5. Comparing digests");
    compare(&made, &down, "came down")?;
    compare(&made, &up, "went up")?;
    compare(&made, &read_back(&made, &export.join("returned"))?, "is on disk now")?;
    println!("   {} files: as made, as fetched, as sent, as read back: all the same", made.len());
    let folder = dir.path().to_owned();
    dir.close()?;
    println!("   removed {}", folder.display());
    print_commands();
    Ok(())
}

/// What the arguments ask for.
fn wanted_sizes() -> Outcome<Sizes> {
    let numbers: Result<Vec<u64>, _> = std::env::args().skip(1).map(|word| word.parse()).collect();
    let usage = "usage: quickstart [CHECKPOINT_MIB [SMALL_FILES]]";
    let numbers = numbers.map_err(|_| usage)?;
    Ok(Sizes {
        checkpoint_bytes: numbers.first().map_or(CHECKPOINT_BYTES, |mib| mib << 20),
        small_files: numbers.get(1).map_or(SMALL_FILES, |&count| count as usize),
    })
}

/// Makes the checkpoint smaller where less is free.
fn fit(wanted: Sizes, folder: &Path) -> Outcome<Sizes> {
    let stat = rustix::fs::statvfs(folder)?;
    let free = stat.f_bavail * stat.f_frsize;
    // A disk gives each small file two blocks.
    let small_bytes = (wanted.small_files * 2 * SMALL_BYTES) as u64;
    let needed = COPIES * (wanted.checkpoint_bytes + small_bytes);
    if free >= needed {
        return Ok(wanted);
    }
    let room = (free / COPIES).saturating_sub(small_bytes) >> 20 << 20;
    let (free, needed) = (size(free as f64), size(needed as f64));
    if room == 0 {
        let folder = folder.display();
        return Err(format!("{folder} has {free} free, and this needs some; set TMPDIR").into());
    }
    println!("0. Only {free} are free, not {needed}: the checkpoint will be smaller");
    Ok(Sizes { checkpoint_bytes: room, ..wanted })
}

/// Makes the files, and says what their digests are: the only ones that Verbatim has no part in.
fn make_data_set(set: &Path, sizes: Sizes) -> Outcome<Digests> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut digests = Digests::new();
    fs::create_dir_all(set)?;
    let mut checkpoint = File::create(set.join("checkpoint.bin"))?;
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK_BYTES];
    for _ in 0..sizes.checkpoint_bytes / BLOCK_BYTES as u64 {
        random.fill(&mut block);
        hasher.update(&block);
        checkpoint.write_all(&block)?;
    }
    digests.insert("checkpoint.bin".into(), hasher.finalize().to_string());
    for number in 0..sizes.small_files {
        let folder = format!("part-{:03}", number % SMALL_FOLDERS);
        if number < SMALL_FOLDERS {
            fs::create_dir(set.join(&folder))?;
        }
        let path = format!("{folder}/{number:05}.bin");
        let content = &mut block[..SMALL_BYTES - 100 + number % 200];
        random.fill(content);
        fs::write(set.join(&path), &*content)?;
        digests.insert(path, blake3::hash(content).to_string());
    }
    Ok(digests)
}

/// Hashes the same files in another folder, without Verbatim.
fn read_back(made: &Digests, folder: &Path) -> Outcome<Digests> {
    let mut digests = Digests::new();
    for path in made.keys() {
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut File::open(folder.join(path))?, &mut hasher)?;
        digests.insert(path.clone(), hasher.finalize().to_string());
    }
    Ok(digests)
}

/// Xorshift: the same bytes on every run, and faster than any disk.
struct Random(u64);

impl Random {
    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            word.copy_from_slice(&self.0.to_le_bytes()[..word.len()]);
        }
    }
}

/// A session as rdma-cp makes it; the key is the one the server left for its own user.
fn session(address: SocketAddr, dir: &Path) -> SessionOptions {
    let timeout = Duration::from_secs(60);
    SessionOptions {
        connect: ConnectOptions {
            host: address.ip().to_string(),
            port: address.port(),
            state_dir: dir.join("state"),
            config_dir: dir.join("config"),
            key: None,
            fingerprint: None,
            trust_on_first_use: false,
            certificates: Default::default(),
            agent: "quickstart".into(),
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            timeout,
        },
        streams: 4,
        timeout,
        carrier: CarrierOptions::default(),
        bytes_per_second: None,
        chunk_by_carrier: false,
        preserve: false,
        sim: None,
        trace: None,
    }
}

/// Copies a tree of so many bytes and says how it went; returns the digests by path below it.
async fn transfer(
    from: Location,
    to: Location,
    bytes: u64,
    session: SessionOptions,
) -> Outcome<Digests> {
    let root = match &from {
        Location::Local(path) => path.display().to_string(),
        Location::Remote(remote) => remote.to_string(),
        Location::Pipe => "-".into(),
    };
    let options = CopyOptions {
        sources: vec![from],
        target: to,
        recursive: true,
        policy: CopyPolicy::default(),
    };
    let bar = progress_bar(bytes)?;
    let mut watcher = Watcher { root, digests: Digests::new(), failures: Vec::new(), bar };
    let summary = copy(&options, session, &mut watcher, std::future::pending()).await?;
    watcher.bar.finish_and_clear();
    if let Some(first) = watcher.failures.first() {
        return Err(format!("{} not copied, first {first}", watcher.failures.len()).into());
    }
    print_summary(&summary);
    Ok(watcher.digests)
}

/// Gathers digests, and shows a bar on a terminal.
struct Watcher {
    root: String,
    digests: Digests,
    failures: Vec<String>,
    bar: ProgressBar,
}

/// The bar of a copy of so many bytes; nothing where standard error is no terminal.
fn progress_bar(bytes: u64) -> Outcome<ProgressBar> {
    let style = "   [{bar:30}] {percent:>3} %  {bytes} of {total_bytes}  {binary_bytes_per_sec}";
    let bar = ProgressBar::new(bytes);
    bar.set_style(ProgressStyle::with_template(style)?.progress_chars("=> "));
    Ok(bar)
}

impl Observer for Watcher {
    fn file_done(&mut self, file: &FileDone) {
        let below = file.path.strip_prefix(&self.root).unwrap_or(&file.path);
        let below = below.trim_start_matches('/').to_owned();
        self.digests.insert(below, file.digest.to_string());
    }

    fn failed(&mut self, failure: &Failure) {
        self.failures.push(format!("{}: {}", failure.path, failure.fault));
    }

    fn progress(&mut self, progress: &Progress) {
        self.bar.set_position(progress.bytes);
    }
}

fn print_summary(summary: &Summary) {
    let seconds = summary.elapsed.as_secs_f64();
    println!(
        "   {} files, {} in {seconds:.1} s: {}/s, {:.0} files/s",
        summary.files,
        size(summary.bytes as f64),
        size(summary.rate()),
        summary.files as f64 / seconds,
    );
    println!("   transport: {}, limited by the {}", summary.transport, summary.limited_by);
    if let Some(reason) = &summary.reason {
        println!("   {reason}");
    }
}

fn compare(made: &Digests, copied: &Digests, how: &str) -> Outcome<()> {
    if made == copied {
        return Ok(());
    }
    let differ = made.iter().find(|(path, digest)| copied.get(*path) != Some(digest));
    let first = differ.map_or("a file that was never made", |(path, _)| path);
    Err(format!("what {how} is not what was made: {first} differs").into())
}

/// A number of bytes, as people read it.
fn size(bytes: f64) -> String {
    match bytes {
        b if b >= (1_u64 << 30) as f64 => format!("{:.2} GiB", b / (1_u64 << 30) as f64),
        b if b >= (1_u64 << 20) as f64 => format!("{:.1} MiB", b / (1_u64 << 20) as f64),
        b => format!("{:.1} KiB", b / 1024.0),
    }
}

fn print_commands() {
    println!(
        "
The same on two machines:

  client$ rdma-cp --new-token ~/.verbatim-token
          prints a line, ed25519:... you@client; take it to the server
  server$ mkdir -p ~/.local/state/verbatim
  server$ echo 'ed25519:... you@client' >> ~/.local/state/verbatim/authorized_keys
  server$ rdma-serve --listen 0.0.0.0:20490 data=/srv/data
          logs its fingerprint, SHA256:...; take it to the client
  client$ rdma-cp -r --token-file ~/.verbatim-token --fingerprint SHA256:... \\
              SERVER:/data/set ./set

To let clients write, export data=/srv/data:rw and copy the other way round.
Without an RDMA device, see it run over real verbs in a guest kernel:
  tests/softroce/run demo"
    );
}
