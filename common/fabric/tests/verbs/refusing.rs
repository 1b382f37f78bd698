//! What is refused, by whom, and what is said: keys and ranges that are not the
//! peer's, memory that may not be pinned, files that cannot be mapped.

use crate::*;

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_key_of_another_domain_is_refused_and_harms_only_who_used_it() {
    let offers = domain();
    let asks = sibling(&offers);
    let stranger = sibling(&offers);
    let bytes = pattern(64 << 10, 4);
    let region = offers.register(Memory::Staged(slot_with(&bytes))).expect("registers");
    let mut honest = Ends::between(asks.clone(), offers.clone(), Options::default());
    // Its far end is in a domain of its own, as every client's is.
    let mut thief = Ends::between(asks.clone(), stranger, Options::default());
    let read = || Op::Read { from: range(region, 0), into: empty(bytes.len()) };
    thief.near.submit(Ticket(1), read()).expect("room");
    let (error, mut flushed) = thief.near_dies();
    assert_refused(&error);
    thief.near.abort(&mut flushed);
    assert_eq!(flushed.len(), 1, "the buffer comes back");
    let Completion::Done { buffer, result, .. } = &flushed[0] else { panic!("{flushed:?}") };
    assert!(result.is_err() && buffer.iter().all(|&byte| byte == 0), "and brings nothing");
    let (seen, _) = death_of(&mut thief.far);
    // Older kernels flush and say no more.
    let told = ["the peer broke an access rule", "work request flushed"];
    assert!(told.iter().any(|text| seen.to_string().contains(text)), "{seen}");
    assert!(seen.hint().is_some(), "{seen:?}");

    honest.near.submit(Ticket(2), read()).expect("room");
    assert!(only(honest.near_completes(1), 2)[..] == bytes[..], "differs");
    assert_eq!(asks.counters().reads(), 2);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn what_a_region_does_not_allow_is_refused() {
    let bytes = pattern(8192, 5);
    let file = file_with(&bytes);
    let offered = || match pins_files() {
        true => window_of(&file, 8192),
        false => Memory::Staged(slot_with(&bytes)),
    };
    let upload = SharedSlot::new(8192).expect("slot");
    fn write(to: RemoteRange) -> Op {
        Op::Write { from: buffer_with(&[9; 100]), to }
    }
    fn notify(to: RemoteRange) -> Op {
        Op::WriteNotify { from: buffer_with(&[9; 100]), to, tag: 1 }
    }
    fn read(from: RemoteRange) -> Op {
        Op::Read { from, into: empty(100) }
    }
    let upload_of = || Memory::Upload(upload.clone());
    type Try = (&'static str, Memory, i64, fn(RemoteRange) -> Op);
    let cases: [Try; 6] = [
        ("write to a file", offered(), 0, write),
        ("write to staging", Memory::Staged(slot_with(&bytes)), 0, notify),
        ("write past the end", upload_of(), 8093, write),
        ("write before the start", upload_of(), -1, write),
        ("read past the end", offered(), 8093, read),
        ("read an upload", upload_of(), 0, read),
    ];
    for (what, memory, offset, op) in cases {
        let mut ends = Ends::new();
        let region = ends.register(memory);
        let at = RemoteRange { key: region.key, address: region.base.wrapping_add_signed(offset) };
        ends.near.submit(Ticket(1), op(at)).expect("room");
        let (error, _) = ends.near_dies();
        assert!(error.to_string().contains("remote access error"), "{what}: {error}");
        assert_eq!(ends.asks.counters().reads() + ends.asks.counters().writes(), 1, "{what}");
    }
    assert!(bytes_of(&upload).iter().all(|&byte| byte == 0), "nothing was written");
    let mut now = vec![0; 8192];
    file.read_exact_at(&mut now, 0).expect("reads");
    assert_eq!(now, bytes, "the file is as it was");
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_key_is_worth_nothing_after_its_region_was_taken_back() {
    let mut ends = Ends::new();
    let bytes = pattern(8192, 6);
    let region = ends.register(Memory::Staged(slot_with(&bytes)));
    let read = || Op::Read { from: range(region, 0), into: empty(8192) };
    ends.near.submit(Ticket(1), read()).expect("room");
    only(ends.near_completes(1), 1);
    assert_eq!((ends.offers.region_count(), ends.offers.pinned_bytes()), (1, 8192));
    ends.offers.deregister(region.key);
    assert_eq!((ends.offers.region_count(), ends.offers.pinned_bytes()), (0, 0));
    ends.near.submit(Ticket(2), read()).expect("room");
    assert_refused(&ends.near_dies().0);
    assert_eq!(ends.asks.counters().reads(), 2);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_domain_pins_no_more_than_it_may() {
    let device = domain();
    let limits = DomainLimits { regions_max: 3, pinned_bytes_max: 1 << 20 };
    let offers = VerbsDomain::new(device.context(), limits).expect("domain");
    let slot = |len| Memory::Staged(SharedSlot::new(len).expect("slot"));
    offers.register(slot(512 << 10)).expect("fits");
    let error = offers.register(slot(513 << 10)).expect_err("too many bytes");
    assert!(matches!(&error, FabricError::Limit(_)), "{error}");
    assert!(error.to_string().contains("at most 1 MiB"), "{error}");
    let region = offers.register(slot(4096)).expect("fits");
    offers.register(slot(4096)).expect("fits");
    assert!(matches!(offers.register(slot(1)), Err(FabricError::Limit(_))), "a fourth region");
    offers.deregister(region.key);
    offers.register(slot(1)).expect("fits again");
    assert_eq!(offers.region_count(), 3);
    let mut ends = Ends::between(device, offers, Options::default());
    let op = Op::Read { from: range(region, 0), into: empty(1) };
    ends.near.submit(Ticket(1), op).expect("room");
    assert_refused(&ends.near_dies().0);
    assert_eq!(ends.asks.counters().reads(), 1);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_truncated_file_under_a_live_window_crashes_nobody() {
    let mut ends = Ends::new();
    let bytes = pattern(4 << 20, 9);
    let file = file_with(&bytes);
    let window = window_of(&file, bytes.len());
    let region = ends.offers.register(match pins_files() {
        true => window,
        // Nothing of it is mapped then, and nothing can go missing.
        false => Memory::Staged(slot_with(&bytes)),
    });
    let region = region.expect("registers");
    file.set_len(4096).expect("truncates");
    let at = 1 << 20;
    let op = Op::Read { from: range(region, at as u64), into: empty(64 << 10) };
    ends.near.submit(Ticket(1), op).expect("room");
    let mut completions = Vec::new();
    until("the read of what is gone completes, or the link dies", || {
        // An error is an answer as well: on-demand regions refuse what is gone.
        let dead = ends.near.poll(&mut completions).is_err();
        seen(dead || !completions.is_empty(), "the link lives, and nothing has completed")
    });
    if let Some(Completion::Done { buffer, result: Ok(()), .. }) = completions.first() {
        let old = buffer[..] == bytes[at..at + (64 << 10)];
        assert!(old || buffer.iter().all(|&byte| byte == 0), "neither the old bytes nor none");
    }
    assert_eq!(ends.asks.counters().reads(), 1);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn the_probe_agrees_with_what_registers() {
    let context = Context::open(&place().device).expect("opens");
    let offers = VerbsDomain::new(&context, DomainLimits::default()).expect("domain");
    let bytes = pattern(8192, 1);
    let registered = offers.register(window_of(&file_with(&bytes), bytes.len()));
    let told = probe(&context, "/dev/shm".as_ref());
    match (&registered, &told) {
        (Ok(_), FileWindows::Mapped) => assert!(pins_files(), "an old kernel learned it"),
        (Err(error), FileWindows::Staged { reason }) => {
            assert!(!pins_files(), "{error}");
            assert_eq!(error.hint(), reason.hint());
            assert!(error.to_string().contains("read-only mappings"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let nowhere = probe(&context, "/nowhere".as_ref());
    let FileWindows::Staged { reason } = nowhere else { panic!("{nowhere:?}") };
    assert!(reason.to_string().contains("/nowhere"), "{reason}");
    let staged = offers.register(Memory::Staged(slot_with(&bytes))).expect("registers");
    let mut ends = Ends::between(sibling(&offers), offers, Options::default());
    ends.near
        .submit(Ticket(1), Op::Read { from: range(staged, 0), into: empty(8192) })
        .expect("room");
    assert!(only(ends.near_completes(1), 1)[..] == bytes[..], "differs");
    assert_eq!(ends.asks.counters().reads(), 1);
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn an_ordinary_user_with_little_memlock_is_told_what_to_raise() {
    const INNER: &str = "VERBATIM_MEMLOCK_TEST";
    if std::env::var_os(INNER).is_some() {
        return with_little_memlock();
    }
    // Root is not bound by the limit: the test is this program again, as somebody else.
    let program = std::env::current_exe().expect("this program");
    let name = "refusing::an_ordinary_user_with_little_memlock_is_told_what_to_raise";
    let script = format!("ulimit -l 64 && exec {} --ignored --exact {name}", program.display());
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"];
    let mut run = Command::new("setpriv");
    run.args(nobody).args(["bash", "-c", &script]).env(INNER, "1");
    let output = run.output().expect("setpriv and bash run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

fn with_little_memlock() {
    let offers = domain();
    let error = offers.register(Memory::Staged(SharedSlot::new(1 << 20).expect("slot")));
    let error = error.expect_err("1 MiB is more than 64 KiB");
    let text = error.to_string();
    assert_eq!(text, "cannot register 1 MiB for a staging slot: memlock limit is 64 KiB");
    assert!(error.hint().expect("hint").contains("ulimit -l unlimited"), "{error:?}");
    // What fits still works, and an operation whose buffer does not fit says so as well.
    let mut ends = Ends::between(
        sibling(&offers),
        offers,
        Options { requests_max: 4, receives: 4, depth_max: 2, ..Options::default() },
    );
    let region = ends.register(Memory::Staged(slot_with(&pattern(4096, 1))));
    ends.near
        .submit(Ticket(0), Op::Read { from: range(region, 0), into: empty(4096) })
        .expect("room");
    only(ends.near_completes(1), 0);
    ends.near
        .submit(Ticket(1), Op::Read { from: range(region, 0), into: empty(1 << 20) })
        .expect("room");
    let (error, completions) = ends.near_dies();
    assert!(error.to_string().contains("memlock limit is 64 KiB"), "{error}");
    assert_eq!(completions.len(), 1, "its buffer comes back");
    assert_eq!(ends.asks.counters().reads(), 1, "and it was not posted");
}
