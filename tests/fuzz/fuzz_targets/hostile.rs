//! Hands the input of the fuzzer to the target that VERBATIM_FUZZ_TARGET names,
//! one of `verbatim_tests::hostile`. Started by `tests/fuzz/run`.

#![no_main]

use std::sync::LazyLock;
use verbatim_tests::hostile::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("VERBATIM_FUZZ_TARGET").expect("the name of a target");
    *TARGETS.iter().find(|(is, _)| *is == name).expect("a target")
});

// The fuzzer's own hook ends the process at every panic, also at one of the database under the
// digest cache, which the server catches. What gets out of a target ends it without the hook.
libfuzzer_sys::fuzz_target!(
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| (TARGET.1)(bytes)
);
