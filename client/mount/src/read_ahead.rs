//! What a reader will want next, from what it wanted: one who goes on where it was
//! gets more and more ahead of time, one who strides gets the next stride, one who
//! jumps gets nothing. What is fetched ahead of one who goes on ends where parts do, so
//! that they are whole. Pure; one of these belongs to each open file.

use verbatim_engine::local_io::range_buffer::PART_BYTES_MAX;

/// The most that is fetched ahead of a reader.
pub const AHEAD_BYTES_MAX: u64 = 32 << 20;

/// What is fetched ahead at first.
const AHEAD_BYTES_MIN: u64 = 2 << 20;

/// How far from its end a read still counts as going on: the kernel reads out of order.
const SLACK_BYTES: u64 = 2 << 20;

/// Strides in a row that are believed.
const STRIDES_MIN: u32 = 2;

/// How a file was read.
#[derive(Debug, Default)]
pub struct ReadAhead {
    begun: bool,
    last: u64,
    end: u64,
    window: u64,
    stride: i64,
    strides: u32,
}

impl ReadAhead {
    /// Notes a read of a file of `size` bytes; says what to fetch ahead: an offset and a length.
    pub fn record(&mut self, offset: u64, len: u64, size: u64) -> Option<(u64, u64)> {
        let first = !std::mem::replace(&mut self.begun, true);
        let near = offset <= self.end + SLACK_BYTES && offset + len + SLACK_BYTES >= self.end;
        let stride = offset as i64 - self.last as i64;
        self.last = offset;
        if first && offset == 0 || !first && near {
            self.end = self.end.max(offset + len);
            self.window = (self.window * 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
            (self.stride, self.strides) = (0, 0);
            // Every read asks again, so what is left off now is asked for with what follows it.
            let to = (self.end + self.window) / PART_BYTES_MAX * PART_BYTES_MAX;
            let to = if self.end + self.window < size { to } else { size };
            return clip(self.end, to.saturating_sub(self.end), size);
        }
        self.end = offset + len;
        self.window = 0;
        if first {
            return None;
        }
        self.strides = if stride == self.stride { self.strides + 1 } else { 1 };
        self.stride = stride;
        let next = offset.checked_add_signed(stride)?;
        if self.strides >= STRIDES_MIN { clip(next, len, size) } else { None }
    }
}

fn clip(offset: u64, len: u64, size: u64) -> Option<(u64, u64)> {
    let len = size.checked_sub(offset)?.min(len);
    (len > 0).then_some((offset, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 1 << 30;

    #[test]
    fn sequential_reads_grow_the_read_ahead_up_to_a_bound_and_the_end_of_file() {
        let mut read_ahead = ReadAhead::default();
        assert_eq!(read_ahead.record(0, MIB, SIZE), None, "less than a part");
        assert_eq!(read_ahead.record(MIB, MIB, SIZE), Some((2 * MIB, 2 * MIB)));
        assert_eq!(read_ahead.record(2 * MIB, MIB, SIZE), Some((3 * MIB, 5 * MIB)));
        for at in 3..41 {
            let (from, len) = read_ahead.record(at * MIB, MIB, SIZE).expect("there is more");
            assert!((from + len) % PART_BYTES_MAX == 0 && len <= AHEAD_BYTES_MAX, "{at}");
            assert!(at < 6 || len > AHEAD_BYTES_MAX - PART_BYTES_MAX, "{at}");
        }
        assert_eq!(read_ahead.record(41 * MIB, MIB, 42 * MIB + 5), Some((42 * MIB, 5)));
        assert_eq!(read_ahead.record(42 * MIB, 5, 42 * MIB + 5), None);
    }

    #[test]
    fn reads_out_of_order_still_count_as_sequential() {
        let mut read_ahead = ReadAhead::default();
        read_ahead.record(0, MIB, SIZE);
        assert_eq!(read_ahead.record(2 * MIB, MIB, SIZE), Some((3 * MIB, MIB)));
        assert_eq!(read_ahead.record(MIB, MIB, SIZE), Some((3 * MIB, 5 * MIB)));
    }

    #[test]
    fn strided_reads_get_the_next_stride_and_random_reads_get_nothing() {
        let mut read_ahead = ReadAhead::default();
        assert_eq!(read_ahead.record(100 * MIB, 4096, SIZE), None);
        assert_eq!(read_ahead.record(110 * MIB, 4096, SIZE), None);
        assert_eq!(read_ahead.record(120 * MIB, 4096, SIZE), Some((130 * MIB, 4096)));
        assert_eq!(read_ahead.record(10 * MIB, 4096, SIZE), None);
        assert_eq!(read_ahead.record(700 * MIB, 4096, SIZE), None);
        assert_eq!(read_ahead.record(300 * MIB, 4096, SIZE), None);
        // Backwards counts as well, and ends at the beginning.
        assert_eq!(read_ahead.record(200 * MIB, 4096, SIZE), None);
        assert_eq!(read_ahead.record(100 * MIB, 4096, SIZE), Some((0, 4096)));
    }
}
