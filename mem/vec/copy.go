package vec

// ChosenCopy is the size in bytes above which Copy uses the kernel that was measured to be the
// fastest, once something has been measured. Up to it Copy is the built-in copy.
const ChosenCopy = 32 << 10

// LargeCopy is the size in bytes above which Copy has the kernels measured if no caller has called
// Calibrate.
const LargeCopy = 256 << 10

// PartAlign is the alignment in bytes, as offsets into the destination, at which a copy that
// several cores or processes share should be cut, so that no two of them write to one cache line or
// take page faults on one page.
const PartAlign = 4096

// Copy copies min(len(dst), len(src)) bytes from src to dst and returns that number, like the
// built-in copy.
//
// Copies of at most ChosenCopy bytes are the built-in copy. Larger ones use the kernel that was
// fastest on this machine for their size class, which is measured in the background from the first
// copy above LargeCopy in the process on (see Calibrate). Until that is known, copies of all sizes
// are the built-in copy, and none waits. Overlapping slices are legal and go to the built-in copy
// at any size.
//
// When Copy returns, its stores are ordered before any later store of this goroutine, whichever
// kernel ran: a flag written afterwards with sync/atomic is seen by another core or process only
// after the data.
//
// dst and src may be memory mapped from a file or from another process. A page that cannot be read
// or written (SIGBUS, SIGSEGV) is a panic that recover can catch where the goroutine has called
// debug.SetPanicOnFault(true); dst then holds an undefined mixture of old and new bytes. Copy
// allocates nothing.
func Copy(dst, src []byte) int {
	if len(src) <= ChosenCopy || len(dst) <= ChosenCopy {
		return copy(dst, src)
	}
	return copyLarge(dst, src, 0)
}

// CopyPart is Copy for one part of a copy of total bytes which several goroutines, or two
// processes, share: the kernel is the one for total, not for the part, because the whole copy
// decides whether the data stay in the caches. Parts may run concurrently when their destinations
// are disjoint, and should be cut at multiples of PartAlign. A part as large as total is the same
// as Copy.
func CopyPart(dst, src []byte, total int) int {
	if total <= ChosenCopy {
		return copy(dst, src)
	}
	return copyLarge(dst, src, total)
}
