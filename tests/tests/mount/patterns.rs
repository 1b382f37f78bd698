//! What is fetched for whom: who jumps gets the blocks that it touched and no more, who
//! strides has the next stride here before it asks, and who goes on has more than that.

use super::*;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 96 * MIB;

fn fetched(mounted: &Mounted) -> u64 {
    mounted.status()["fetched_bytes"].as_u64().expect("a number")
}

fn read_page_of(file: &fs::File, offset: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Reads a page at an offset, as it is in `content`.
fn read_page(file: &fs::File, content: &[u8], offset: u64) -> std::io::Result<()> {
    let bytes = read_page_of(file, offset)?;
    let at = offset as usize;
    assert!(bytes == content[at..at + 4096], "something else is at {offset}");
    Ok(())
}

#[test]
fn who_jumps_costs_what_it_touched_and_who_strides_or_goes_on_is_expected() {
    if !can_mount("who_jumps_costs_what_it_touched_and_who_strides_or_goes_on_is_expected") {
        return;
    }
    let content = noise(SIZE as usize, 21);
    let names = ["jump", "stride", "go on"];
    let mut source = Source::new(|dir| {
        names.iter().for_each(|name| fs::write(dir.join(name), &content).expect("writes"));
    });
    // What is younger is looked at more than once.
    std::thread::sleep(SETTLED);
    let mounted = source.mount(&["--timeout", "10"]);
    let [jump, stride, go_on] =
        names.map(|name| fs::File::open(mounted.path(name)).expect("opens"));
    assert_eq!(fetched(&mounted), 3 * MIB, "the first block comes with the file");
    for at in [50, 20, 80, 35, 66, 11] {
        read_page(&jump, &content, at * MIB + 5 * 4096).expect("reads");
    }
    // Nobody can wait for what must not come: long enough for a few blocks.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(fetched(&mounted), 9 * MIB, "six blocks more");
    for at in [20, 27, 34] {
        read_page(&stride, &content, at * MIB).expect("reads");
    }
    wait_for(&format!("{} bytes are fetched: the next stride", 13 * MIB), STAND_MAX, || {
        when(fetched(&mounted), |bytes| *bytes == 13 * MIB)
    });
    for at in 0..64 {
        read_page(&go_on, &content, at * 4096).expect("reads");
    }
    // Nobody else comes near this block, so whoever has it has it for this one.
    let is_here = || {
        reading::data_files(mounted.cache.path()).iter().any(|data| {
            let data = fs::File::open(data).expect("is there");
            read_page_of(&data, 2 * MIB).is_ok_and(|page| page == content[2 << 20..][..4096])
        })
    };
    // Runs of blocks come in any order: all of them have come when no more do for a second.
    let mut last = (fetched(&mounted), Instant::now());
    let what = format!("{} bytes and the block at {} are fetched, and no more", 15 * MIB, 2 * MIB);
    wait_for(&what, STAND_MAX, || {
        let now = fetched(&mounted);
        if now != last.0 {
            last = (now, Instant::now());
        }
        let quiet = last.1.elapsed();
        let done = now >= 15 * MIB && quiet >= Duration::from_secs(1) && is_here();
        seen(done, format!("{now} bytes, for {quiet:?}"))
    });
    source.kill();
    read_page(&stride, &content, 41 * MIB).expect("it was expected");
    read_page(&go_on, &content, 2 * MIB).expect("it was expected");
    let error = read_page(&jump, &content, 40 * MIB).expect_err("it was not");
    assert_eq!(errno(&error), EIO, "{error}");
    mounted.end();
}
