//! The scheduler at a scale that no test machine has, in virtual time: exact, the
//! same on every machine, and done in a second or two.

use verbatim_benches::scale::{Figures, Model};

/// How much of what is possible must be kept.
const KEPT_MIN: f64 = 0.95;

#[test]
fn eight_rails_of_400_gigabit_are_kept_busy() {
    let model = Model::default();
    let figures = model.run();
    assert!((figures.possible_bytes_per_s - 400e9).abs() < 1.0, "the rails are the limit");
    assert!(figures.kept() >= KEPT_MIN, "{figures:?}");
    let share = model.file_bytes as f64 / f64::from(model.rails);
    for bytes in &figures.rail_bytes {
        assert!(
            (*bytes as f64 / share - 1.0).abs() < 0.05,
            "rails carry unequal parts: {figures:?}"
        );
    }
}

#[test]
fn the_same_model_gives_the_same_figures() {
    let model = Model { file_bytes: 256 << 20, dies: Some((1, 300_000)), ..Model::default() };
    let (first, second) = (model.run(), model.run());
    assert_eq!((first.ns, first.rail_bytes), (second.ns, second.rail_bytes));
}

#[test]
fn cores_that_hash_too_slowly_are_kept_busy() {
    let model = Model { cores: 16, file_bytes: 1 << 30, ..Model::default() };
    let figures = model.run();
    assert!(figures.possible_bytes_per_s < 130e9, "the cores are the limit");
    assert!(figures.kept() >= KEPT_MIN, "{figures:?}");
}

/// A rail dies in the middle of a run in one direction.
fn assert_costs_its_share(run: fn(&Model) -> Figures) {
    let model = Model::default();
    let whole_ns = run(&model).ns;
    let dies_ns = whole_ns / 2;
    let figures = run(&Model { dies: Some((3, dies_ns)), ..model });
    // What was left to do takes longer by the part of the rails that is gone.
    let left_ns = (whole_ns - dies_ns) as f64;
    let possible_ns =
        dies_ns as f64 + left_ns * f64::from(model.rails) / f64::from(model.rails - 1);
    assert!(figures.ns as f64 * KEPT_MIN <= possible_ns, "{possible_ns} ns possible: {figures:?}");
    let dead = figures.rail_bytes[3] as f64 / model.file_bytes as f64;
    assert!((0.04..0.08).contains(&dead), "half of an eighth went over it: {figures:?}");
}

#[test]
fn a_rail_that_dies_costs_no_more_than_its_share() {
    assert_costs_its_share(Model::run);
}

#[test]
fn a_rail_that_dies_under_writing_costs_its_share_and_the_fence() {
    assert_costs_its_share(Model::run_up);
}

#[test]
fn writing_keeps_eight_rails_busy_too() {
    let model = Model::default();
    let figures = model.run_up();
    assert!((figures.possible_bytes_per_s - 400e9).abs() < 1.0, "the rails are the limit");
    assert!(figures.kept() >= KEPT_MIN, "{figures:?}");
    let cores = Model { cores: 16, file_bytes: 1 << 30, ..model }.run_up();
    assert!(cores.possible_bytes_per_s < 130e9, "the cores are the limit");
    assert!(cores.kept() >= KEPT_MIN, "{cores:?}");
}
