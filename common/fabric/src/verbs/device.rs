//! The devices that libibverbs has a driver for, by name; `context` opens them. What they
//! are and which of them is used, `ports` knows without the library.

use super::ffi;
use super::library::library;
use crate::ports::Reason;
use std::ffi::CStr;

/// The library's list of devices; those opened from it outlive it.
pub(super) struct DeviceList {
    list: *mut *mut ffi::Device,
    count: usize,
}

/// A device of the list.
#[derive(Clone, Copy)]
pub(super) struct Listed<'a> {
    raw: *mut ffi::Device,
    _list: std::marker::PhantomData<&'a DeviceList>,
}

impl DeviceList {
    pub fn new() -> Result<Self, Reason> {
        let library = library()?;
        let mut count = 0;
        // SAFETY: `count` is ours to be written.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        // No list means no kernel support: the same as no device.
        let count = if list.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
        Ok(Self { list, count })
    }

    pub fn iter(&self) -> impl Iterator<Item = Listed<'_>> {
        (0..self.count).map(|index| {
            let place = self.list.wrapping_add(index);
            // SAFETY: the library made `count` entries, and frees them when `self` is dropped.
            let raw = unsafe { *place };
            Listed { raw, _list: std::marker::PhantomData }
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if let (false, Ok(library)) = (self.list.is_null(), library()) {
            // SAFETY: the list came from the library and is freed once.
            unsafe { (library.ibv_free_device_list)(self.list) };
        }
    }
}

impl Listed<'_> {
    pub fn name(self) -> String {
        let Ok(library) = library() else { return String::new() };
        // SAFETY: the device is in a list that is alive.
        let name = unsafe { (library.ibv_get_device_name)(self.raw) };
        // SAFETY: the name is part of the device and ends with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    pub fn raw(self) -> *mut ffi::Device {
        self.raw
    }
}
