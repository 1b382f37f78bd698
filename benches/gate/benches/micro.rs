//! Micro benches, timed by criterion: the pieces of work whose instructions are
//! counted, and what is not the same on every processor, checking a chunk with
//! BLAKE3. `cargo bench -p verbatim-gate`. For comparing a change with what was before
//! on one quiet machine; how long it takes is never asserted.

#![forbid(unsafe_code)]
#![allow(missing_docs)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use verbatim_proto::Digest;
use verbatim_proto::units::{CHUNK_BYTES_DEFAULT, GRAIN_BYTES};

/// The pieces that are counted.
fn fixed(criterion: &mut Criterion) {
    for (name, work) in verbatim_gate::WORK {
        criterion.bench_function(name, |bencher| bencher.iter(work));
    }
}

/// A chunk that arrived is hashed grain by grain and compared, as the workers do.
fn verify(criterion: &mut Criterion) {
    let chunk: Vec<u8> = (0..CHUNK_BYTES_DEFAULT).map(|at| (at % 251) as u8).collect();
    let size = 1 << 30;
    let digests = Digest::of_grains(0, size, &chunk);
    let mut group = criterion.benchmark_group("blake3");
    group.throughput(Throughput::Bytes(u64::from(CHUNK_BYTES_DEFAULT)));
    group.bench_function("verify-chunk", |bencher| {
        bencher.iter(|| {
            let grains = black_box(&chunk).chunks(GRAIN_BYTES as usize).zip(&digests);
            let starts = (0..).step_by(GRAIN_BYTES as usize);
            for (offset, (grain, digest)) in starts.zip(grains) {
                assert_eq!(Digest::of_grain(offset, size, grain), *digest);
            }
        });
    });
    group.finish();
}

criterion_group!(micro, fixed, verify);
criterion_main!(micro);
