//! The heap of this process: what was freed is kept by the C library for what is asked
//! for next, until it is told to give it back. Other libraries than glibc keep little.

/// Gives what is free in the heap back to the system. Takes as long as it takes to look through
/// what is free.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code)]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: it takes a number and may be called by any thread at any time; it touches only
        // memory that is free.
        unsafe { malloc_trim(0) };
    }
}
