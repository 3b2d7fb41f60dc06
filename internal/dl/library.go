package dl

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
)

// Library is a shared library that was loaded. It may be used by several goroutines.
type Library struct {
	name   string
	mu     sync.Mutex
	handle uintptr // 0 after Close
}

// Open loads the first of names that loads, with all its symbols resolved and none of them given to
// other libraries. A name without a slash is looked up as the loader does it (LD_LIBRARY_PATH, its
// cache, the standard directories); one with a slash is a path. The error wraps [ErrNotFound] and
// has each name with the loader's own words. The caller closes the library.
func Open(names ...string) (*Library, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("dl: %w: no name was given", ErrNotFound)
	}
	var failed []string
	for _, name := range names {
		if name == "" || strings.ContainsRune(name, 0) {
			failed = append(failed, fmt.Sprintf("%q: expected the name or the path of a file", name))
			continue
		}
		if strings.Contains(name, "/") {
			if err := checkFile(name); err != nil {
				failed = append(failed, fmt.Sprintf("%s: %v", name, err))
				continue
			}
		}
		handle, err := open(name)
		if err == nil {
			return &Library{name: name, handle: handle}, nil
		}
		failed = append(failed, explain(name, err.Error()))
	}
	return nil, fmt.Errorf("dl: %w: %s", ErrNotFound, strings.Join(failed, "; "))
}

// open holds the thread: the loader keeps its words for each thread.
func open(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return dlopen(name)
}

// Loaded reports whether any code of the process, Go or C, has loaded the library. Loaded itself
// does not load it.
func Loaded(name string) bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return loaded(name)
}

// Name is the name that the library was opened by.
func (l *Library) Name() string { return l.name }

// Symbol is the function called name. It is good until Close. The error wraps [ErrNoSymbol].
func (l *Library) Symbol(name string) (Func, error) {
	return l.lookup(name, func() (uintptr, error) { return dlsym(l.handle, name) })
}

// SymbolVersion is the function called name in that version, for libraries that have several of it
// (libibverbs has ibv_open_device in IBVERBS_1.0 and IBVERBS_1.1; Symbol finds the default one).
// The error wraps [ErrNoSymbol].
func (l *Library) SymbolVersion(name, version string) (Func, error) {
	n, err := CString(name)
	if err != nil {
		return 0, err
	}
	v, err := CString(version)
	if err != nil {
		return 0, err
	}
	return l.lookup(name+"@"+version, func() (uintptr, error) { return dlvsym(l.handle, n, v) })
}

func (l *Library) lookup(name string, find func() (uintptr, error)) (Func, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == 0 {
		return 0, fmt.Errorf("dl: %s: %w: the library is closed", name, ErrNoSymbol)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a, err := find()
	if err != nil {
		return 0, fmt.Errorf("dl: %s: %w: %v", name, ErrNoSymbol, err)
	}
	return Func(a), nil
}

// Close gives the library back to the loader, which unloads it when nothing else in the process has
// it open. Its functions must not be called any more. A second Close does nothing.
func (l *Library) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == 0 {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := dlclose(l.handle)
	l.handle = 0
	if err != nil {
		return fmt.Errorf("dl: close %s: %w", l.name, err)
	}
	return nil
}

// libc is what this package needs of the C library, which is in every process that has it.
var libc = sync.OnceValues(func() (c clib, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for name, f := range map[string]*Func{
		"__errno_location": &c.errno, "dlvsym": &c.dlvsym, "dlerror": &c.dlerror, "posix_memalign": &c.memalign,
		"free": &c.free,
	} {
		a, err := dlsym(everything, name)
		if err != nil {
			return c, fmt.Errorf("dl: the C library of this process: %s: %w: %v", name, ErrNoSymbol, err)
		}
		*f = Func(a)
	}
	return c, nil
})

type clib struct{ errno, dlvsym, dlerror, memalign, free Func }
