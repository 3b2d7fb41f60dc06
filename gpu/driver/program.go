package driver

import (
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Program is one or more kernels in every form that there is of them. A runtime takes the form that
// its device runs. A Program is inert data and may be loaded any number of times; it must not be
// changed after that.
type Program struct {
	Name    string // for messages: "copy"
	Kernels []Signature
	Source  string            // OpenCL C, complete; "" where there is none
	PTX     []PTX             // for CUDA; a runtime takes the newest architecture that the device runs
	Go      map[string]GoFunc // by kernel; nil where there is none
}

// PTX is a program compiled for NVIDIA's virtual machine.
type PTX struct {
	SM      int    // the architecture that it is for, as in sm_70: every later one runs it too
	Version int    // of PTX, times ten: 63 for 6.3. A driver reads versions up to its own
	Text    string // without a zero byte at its end
}

// Signature is a kernel's name and parameters.
type Signature struct {
	Name   string
	Params []Param
}

// Param is the type of a kernel's parameter, named for messages.
type Param struct {
	Name string
	Type Type
}

// Type is the type of a parameter.
type Type uint8

const (
	Buffer Type = iota // a pointer to memory of the device
	U32
	U64
	I32
	I64
	F32
	F64

	NumTypes // how many there are
)

var typeNames = [NumTypes]string{"buffer", "u32", "u64", "i32", "i64", "f32", "f64"}
var typeSizes = [NumTypes]int{8, 4, 8, 4, 8, 4, 8}

func (t Type) String() string {
	if t < NumTypes {
		return typeNames[t]
	}
	return fmt.Sprintf("type(%d)", uint8(t))
}

// Size is the parameter's size in bytes as the device sees it, 8 for a Buffer.
func (t Type) Size() int {
	if t < NumTypes {
		return typeSizes[t]
	}
	return 0
}

// Arg is an argument as a runtime gets it: checked against the Signature.
type Arg struct {
	Type Type
	Mem  Memory // Buffer: where it is in; never nil
	Off  uint64 // Buffer: bytes from the start of Mem; 0 where Len is 0
	Len  uint64 // Buffer: bytes that the kernel may touch
	Bits uint64 // other types: the value, in the lower Type.Size bytes
}

// Grid is how many work-items run: Groups times Group, in one dimension. Each sees the number of
// its group and its own in it.
type Grid struct {
	Groups uint32 // CUDA: blocks; OpenCL: work-groups. With 0 nothing runs
	Group  uint32 // work-items of one group; CUDA: threads of a block
}

// Items is the number of work-items.
func (g Grid) Items() uint64 { return uint64(g.Groups) * uint64(g.Group) }

// GoFunc is a kernel in Go: the reference of the other forms. It is called once for each launch and
// does the work of the whole grid, on a goroutine of its stream. What it touches is in a. A panic
// is what a fault in a kernel is on a GPU: the device is lost.
type GoFunc func(g Grid, a []GoArg)

// Groups makes a GoFunc of what one group does: each group of the grid is a goroutine, and all run
// side by side, as groups that are on a device together. That is for kernels whose groups wait for
// each other or for the CPU. A panic of a group is one of the GoFunc, when all groups have ended.
func Groups(f func(group uint32, g Grid, a []GoArg)) GoFunc {
	return func(g Grid, a []GoArg) {
		var wg sync.WaitGroup
		var failed atomic.Pointer[any]
		for i := range g.Groups {
			wg.Go(func() {
				debug.SetPanicOnFault(true)
				defer func() {
					if v := recover(); v != nil {
						failed.CompareAndSwap(nil, &v)
					}
				}()
				f(i, g, a)
			})
		}
		wg.Wait()
		if v := failed.Load(); v != nil {
			panic(*v)
		}
	}
}

// GoArg is an argument of a GoFunc.
type GoArg struct {
	Bytes []byte // of a Buffer, as long as its span
	Bits  uint64 // of other types
}

// U32 is the argument as unsigned 32 bits.
func (a GoArg) U32() uint32 { return uint32(a.Bits) }

// U64 is the argument as unsigned 64 bits.
func (a GoArg) U64() uint64 { return a.Bits }

// I32 is the argument as signed 32 bits.
func (a GoArg) I32() int32 { return int32(a.Bits) }

// I64 is the argument as signed 64 bits.
func (a GoArg) I64() int64 { return int64(a.Bits) }

// F32 is the argument as a float of 32 bits.
func (a GoArg) F32() float32 { return math.Float32frombits(uint32(a.Bits)) }

// F64 is the argument as a float of 64 bits.
func (a GoArg) F64() float64 { return math.Float64frombits(a.Bits) }
