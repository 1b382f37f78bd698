//! Read-ahead: predicts the next range from the last reads. Sequential reads get a
//! growing window, strided reads the next stride, random reads nothing. The window of
//! sequential reads ends at a part boundary, so that parts are fetched whole. Pure;
//! each open file has one.

use verbatim_engine::local_io::range_buffer::RANGE_BYTES_MAX;

/// The largest read-ahead window.
pub const AHEAD_BYTES_MAX: u64 = 32 << 20;

/// The first read-ahead window.
const AHEAD_BYTES_MIN: u64 = 2 << 20;

/// How far from the last end a read still counts as sequential: the kernel reads out of order.
const SLACK_BYTES: u64 = 2 << 20;

/// Equal strides in a row before a stride is predicted.
const STRIDES_MIN: u32 = 2;

/// The read pattern of one open file.
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
    /// Records a read of a file of `size` bytes; returns the offset and length to prefetch.
    pub fn record(&mut self, offset: u64, len: u64, size: u64) -> Option<(u64, u64)> {
        let first = !std::mem::replace(&mut self.begun, true);
        let near = offset <= self.end + SLACK_BYTES && offset + len + SLACK_BYTES >= self.end;
        let stride = offset as i64 - self.last as i64;
        self.last = offset;
        if first && offset == 0 || !first && near {
            self.end = self.end.max(offset + len);
            self.window = (self.window * 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
            (self.stride, self.strides) = (0, 0);
            // Every read asks again, so the next one covers the range cut off here.
            let to = (self.end + self.window) / RANGE_BYTES_MAX * RANGE_BYTES_MAX;
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
            assert!((from + len) % RANGE_BYTES_MAX == 0 && len <= AHEAD_BYTES_MAX, "{at}");
            assert!(at < 6 || len > AHEAD_BYTES_MAX - RANGE_BYTES_MAX, "{at}");
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
        // Backward strides count as well, and end at the start of the file.
        assert_eq!(read_ahead.record(200 * MIB, 4096, SIZE), None);
        assert_eq!(read_ahead.record(100 * MIB, 4096, SIZE), Some((0, 4096)));
    }
}
