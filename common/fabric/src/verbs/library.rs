//! libibverbs, opened at run time: one binary starts and works where it is
//! missing, and says so. Opened once and never closed, because device drivers
//! that it loads keep pointers into it. Nobody calls it but this module's
//! neighbours, each of which wraps one kind of object.

use super::ffi;
use crate::ports::Reason;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// What the library is called; the number is its ABI and has not changed since 2005.
const NAME: &str = "libibverbs.so.1";

/// Opens the library the first time; later calls get the same answer.
pub(crate) fn library() -> Result<&'static Library, Reason> {
    static LIBRARY: OnceLock<Result<Library, Reason>> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::open(NAME)).as_ref().map_err(Clone::clone)
}

macro_rules! library {
    (required { $($(#[$doc:meta])* $name:ident: fn($($argument:ty),*) $(-> $answer:ty)?;)* }
     optional { $($(#[$odoc:meta])* $oname:ident = $symbol:literal:
        fn($($oargument:ty),*) $(-> $oanswer:ty)?;)* }) => {
        /// The calls of libibverbs, looked up once.
        #[derive(Debug)]
        pub(crate) struct Library {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
            $($(#[$odoc])* pub $oname:
                Option<unsafe extern "C" fn($($oargument),*) $(-> $oanswer)?>,)*
            /// Keeps the pointers above valid.
            _handle: libloading::Library,
        }

        impl Library {
            fn open(name: &str) -> Result<Self, Reason> {
                let missing = |error: libloading::Error| Reason::NoLibrary {
                    cause: flat(&error),
                };
                // SAFETY: libibverbs and the drivers it loads are made to be loaded by any
                // program; their constructors register drivers and nothing else.
                let handle = unsafe { libloading::Library::new(name) }.map_err(missing)?;
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of the header of this library version.
                        let symbol = unsafe { handle.get(concat!(stringify!($name), "\0")) };
                        *symbol.map_err(missing)?
                    },)*
                    $($oname: {
                        // SAFETY: the type is that of the header of the version that added it.
                        let symbol = unsafe { handle.get(concat!($symbol, "\0")) };
                        symbol.ok().map(|symbol| *symbol)
                    },)*
                    _handle: handle,
                })
            }
        }
    };
}

library! {
required {
    /// Lists devices, with a null at the end.
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ffi::Device;
    /// Frees that list.
    ibv_free_device_list: fn(*mut *mut ffi::Device);
    /// The kernel's name of a device.
    ibv_get_device_name: fn(*mut ffi::Device) -> *const c_char;
    /// Opens a device.
    ibv_open_device: fn(*mut ffi::Device) -> *mut ffi::Context;
    /// Closes it.
    ibv_close_device: fn(*mut ffi::Context) -> c_int;
    /// What a device can do.
    ibv_query_device: fn(*mut ffi::Context, *mut ffi::DeviceAttr) -> c_int;
    /// The state of a port. The library writes all fields up to the link layer.
    ibv_query_port: fn(*mut ffi::Context, u8, *mut ffi::PortAttr) -> c_int;
    /// One address of a port.
    ibv_query_gid: fn(*mut ffi::Context, u8, c_int, *mut ffi::Gid) -> c_int;
    /// One partition key of a port, in network byte order.
    ibv_query_pkey: fn(*mut ffi::Context, u8, c_int, *mut u16) -> c_int;
    /// Makes a protection domain.
    ibv_alloc_pd: fn(*mut ffi::Context) -> *mut ffi::Pd;
    /// Frees it; refused while anything is in it.
    ibv_dealloc_pd: fn(*mut ffi::Pd) -> c_int;
    /// Registers memory.
    ibv_reg_mr: fn(*mut ffi::Pd, *mut c_void, usize, c_int) -> *mut ffi::Mr;
    /// Takes it back.
    ibv_dereg_mr: fn(*mut ffi::Mr) -> c_int;
    /// Makes a channel for events of completion queues.
    ibv_create_comp_channel: fn(*mut ffi::Context) -> *mut ffi::CompChannel;
    /// Frees it.
    ibv_destroy_comp_channel: fn(*mut ffi::CompChannel) -> c_int;
    /// Makes a completion queue.
    ibv_create_cq: fn(*mut ffi::Context, c_int, *mut c_void, *mut ffi::CompChannel, c_int)
        -> *mut ffi::Cq;
    /// Frees it, once every event of it was acknowledged.
    ibv_destroy_cq: fn(*mut ffi::Cq) -> c_int;
    /// Takes an event off a channel.
    ibv_get_cq_event: fn(*mut ffi::CompChannel, *mut *mut ffi::Cq, *mut *mut c_void) -> c_int;
    /// Acknowledges events.
    ibv_ack_cq_events: fn(*mut ffi::Cq, c_uint);
    /// Makes a queue pair.
    ibv_create_qp: fn(*mut ffi::Pd, *mut ffi::QpInitAttr) -> *mut ffi::Qp;
    /// Changes its state.
    ibv_modify_qp: fn(*mut ffi::Qp, *mut ffi::QpAttr, c_int) -> c_int;
    /// Frees it, once every event of it was acknowledged.
    ibv_destroy_qp: fn(*mut ffi::Qp) -> c_int;
    /// Takes an asynchronous event off a device.
    ibv_get_async_event: fn(*mut ffi::Context, *mut ffi::AsyncEvent) -> c_int;
    /// Acknowledges it.
    ibv_ack_async_event: fn(*mut ffi::AsyncEvent);
}
optional {
    /// Registers memory under an address of choice; knows optional flags. Since 1.8.
    reg_mr_iova2 = "ibv_reg_mr_iova2": fn(*mut ffi::Pd, *mut c_void, usize, u64, c_uint)
        -> *mut ffi::Mr;
}
}

/// An error of the loader on one line.
fn flat(error: &libloading::Error) -> String {
    let text = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_a_fix() {
        let Err(reason) = Library::open("libibverbs-nowhere.so.1") else { panic!("it opened") };
        let text = reason.to_string();
        assert!(text.contains("libibverbs-nowhere.so.1"), "{text}");
        assert!(reason.hint().contains("rdma-core"), "{}", reason.hint());
    }

    #[test]
    fn another_library_is_not_taken_for_it() {
        let Err(reason) = Library::open("libc.so.6") else { panic!("it opened") };
        assert!(reason.to_string().contains("ibv_get_device_list"), "{reason}");
    }
}
