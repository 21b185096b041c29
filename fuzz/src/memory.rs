//! Counts what this thread allocates, so that a decoder that believes a hostile length is found out.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn moved(by: isize) {
    // A thread that is ending has no counters any more.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + by);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; the counters are const-initialised and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        moved(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        moved(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        moved(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        moved(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Memory that any call may take, bytes: buffers of a fixed size, thread-local contexts at first use.
pub const FLOOR: usize = 4 << 20;

/// Runs `f`, which may have at most `factor` bytes a byte of input at one time, and [`FLOOR`].
///
/// # Panics
/// Where it had more.
pub fn bounded<T>(bytes: &[u8], factor: usize, f: impl FnOnce() -> T) -> T {
    let before = NOW.get();
    PEAK.set(before);
    let value = f();
    let took = usize::try_from(PEAK.get() - before).unwrap_or(0);
    let limit = FLOOR + factor * bytes.len();
    assert!(took <= limit, "{} bytes of input took {took} bytes of memory, more than {limit}", bytes.len());
    value
}
