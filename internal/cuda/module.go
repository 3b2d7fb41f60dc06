package cuda

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/internal/dl"
)

// Module is code that was loaded into a context.
type Module struct {
	c *Context
	h uintptr
}

// logSize is the room for each log of the driver's compiler, in bytes.
const logSize = 16 << 10

// LoadError is a module that the driver refused, with what its compiler said.
type LoadError struct {
	Err error
	Log string // "" where it said nothing
}

// Error has the driver's result and the log.
func (e *LoadError) Error() string {
	if e.Log == "" {
		return e.Err.Error()
	}
	return e.Err.Error() + "\n" + e.Log
}

// Unwrap is the driver's error.
func (e *LoadError) Unwrap() error { return e.Err }

// Load compiles PTX for the device and loads it, or loads a cubin or fatbin as it is. log is what
// the compiler remarked. It waits for work of the context, and takes long for large PTX, of which
// the driver keeps the result on disk. The caller closes the module. The error is a [*LoadError]
// where the driver refused.
func (c *Context) Load(image []byte) (m *Module, log string, err error) {
	if len(image) == 0 {
		return nil, "", fmt.Errorf("cuda: load a module: it is empty, expected PTX or a cubin")
	}
	if bytes.IndexByte(image, 0) >= 0 && bytes.HasPrefix(bytes.TrimSpace(image), []byte("//")) {
		return nil, "", fmt.Errorf("cuda: load a module: PTX with a zero byte inside: expected text")
	}
	var l lent
	defer l.free()
	text, err := l.text(image)
	if err != nil {
		return nil, "", err
	}
	info, err := l.bytes(logSize)
	if err != nil {
		return nil, "", err
	}
	wrong, err := l.bytes(logSize)
	if err != nil {
		return nil, "", err
	}
	// CU_JIT_INFO_LOG_BUFFER, its size, CU_JIT_ERROR_LOG_BUFFER, its size.
	keys, err := place(&l, [4]int32{3, 4, 5, 6})
	if err != nil {
		return nil, "", err
	}
	values, err := place(&l, [4]uintptr{address(info, 0), logSize, address(wrong, 0), logSize})
	if err != nil {
		return nil, "", err
	}
	h, err := in[uintptr](c, fnModuleLoadDataEx, text, 4, keys, values)
	info[logSize-1], wrong[logSize-1] = 0, 0
	log = strings.TrimSpace(dl.GoString(address(info, 0)))
	if err != nil {
		return nil, log, &LoadError{about(err, "%d bytes", len(image)),
			strings.TrimSpace(dl.GoString(address(wrong, 0)))}
	}
	return &Module{c, h}, log, nil
}

// Close unloads the module. Its functions end with it, and their launches must be over.
func (m *Module) Close() error { return m.c.call(fnModuleUnload, m.h) }

// Function finds a kernel by its name. It ends with the module.
func (m *Module) Function(name string) (*Function, error) {
	var l lent
	defer l.free()
	text, err := l.text([]byte(name))
	if err != nil {
		return nil, err
	}
	h, err := in[uintptr](m.c, fnModuleGetFunction, m.h, text)
	if err != nil {
		return nil, about(err, "no kernel %q", name)
	}
	return &Function{m.c, h, name}, nil
}

// Global finds a global variable of the module by its name: where it is, and its size in bytes.
func (m *Module) Global(name string) (Pointer, uint64, error) {
	var l lent
	defer l.free()
	text, err := l.text([]byte(name))
	if err != nil {
		return 0, 0, err
	}
	p, n, err := ins[Pointer, uint64](m.c, fnModuleGetGlobal, m.h, text)
	return p, n, about(err, "no global %q", name)
}

// Function is a kernel.
type Function struct {
	c    *Context
	h    uintptr
	name string
}

// Name is the kernel's name.
func (f *Function) Name() string { return f.name }

// FunctionAttribute is a property of a kernel, as the manual numbers them (CUfunction_attribute).
type FunctionAttribute int32

// The attributes of kernels that Penstock asks for.
const (
	FunctionRegisters        FunctionAttribute = 4 // for each thread
	FunctionPTXVersion       FunctionAttribute = 5 // 10 × major + minor
	FunctionMaxDynamicShared FunctionAttribute = 8 // bytes; may be set
)

// Attribute is the value of an attribute.
func (f *Function) Attribute(a FunctionAttribute) (int, error) {
	v, err := in[int32](f.c, fnFuncGetAttribute, uintptr(a), f.h)
	return int(v), about(err, "attribute %d of %s", a, f.name)
}

// SetAttribute sets an attribute: the shared memory that a launch may ask for beyond 48 KiB.
func (f *Function) SetAttribute(a FunctionAttribute, v int) error {
	return about(f.c.call(fnFuncSetAttribute, f.h, uintptr(a), uintptr(v)), "attribute %d of %s", a, f.name)
}

// BlocksPerMultiprocessor is how many blocks of so many threads and bytes of dynamic shared memory
// one multiprocessor runs at once.
func (f *Function) BlocksPerMultiprocessor(threads int, shared uint64) (int, error) {
	n, err := in[int32](f.c, fnOccupancy, f.h, uintptr(threads), uintptr(shared))
	return int(n), about(err, "%s with %d threads", f.name, threads)
}
