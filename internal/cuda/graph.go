package cuda

// Graph is work that is described once and launched many times, for less than its parts cost one by one.
type Graph struct {
	c *Context
	h uintptr
}

// Capture makes work that is put into the stream from now on become a graph instead of being done, until [Stream.EndCapture]. Any goroutine may go on with it: the
// capture is of the relaxed kind, which is not tied to a thread.
func (s *Stream) Capture() error {
	if err := s.c.d.Has(Capture); err != nil {
		return err
	}
	const relaxed = 2
	return s.c.call(fnStreamBeginCapture, s.h, relaxed)
}

// EndCapture ends Capture. The caller closes the graph.
func (s *Stream) EndCapture() (*Graph, error) {
	if err := s.c.d.Has(Capture); err != nil {
		return nil, err
	}
	var l lent
	defer l.free()
	b, err := l.bytes(8)
	if err != nil {
		return nil, err
	}
	if err := s.c.call(fnStreamEndCapture, s.h, address(b, 0)); err != nil {
		return nil, err
	}
	return &Graph{s.c, get[uintptr](b, 0)}, nil
}

// Capturing reports whether the stream is being captured.
func (s *Stream) Capturing() (bool, error) {
	if err := s.c.d.Has(Capture); err != nil {
		return false, err
	}
	var l lent
	defer l.free()
	b, err := l.bytes(4)
	if err != nil {
		return false, err
	}
	err = s.c.call(fnStreamIsCapturing, s.h, address(b, 0))
	return get[int32](b, 0) == 1, err
}

// NewGraph makes an empty graph, to which nodes are added one by one. The caller closes it.
func (c *Context) NewGraph() (*Graph, error) {
	if err := c.d.Has(GraphNodes); err != nil {
		return nil, err
	}
	h, err := in[uintptr](c, fnGraphCreate, 0)
	if err != nil {
		return nil, err
	}
	return &Graph{c, h}, nil
}

// Node is a piece of work of a graph. It ends with the graph.
type Node uintptr

// kernelNode is CUDA_KERNEL_NODE_PARAMS_v2; unnamed are extra, a kernel of a library, a context.
type kernelNode struct {
	function    uintptr
	grid, block [3]uint32
	shared, _   uint32
	params      uintptr
	_, _, _     uintptr
}

// copyNode is CUDA_MEMCPY3D, of which one row of bytes is used.
type copyNode struct {
	from, to             copySide
	width, height, depth uint64
}

// copySide is one end; unnamed are the place in a matrix, an array, pitch and height.
type copySide struct {
	_, _, _, _ uint64
	kind, _    uint32
	host       uintptr
	device     Pointer
	_, _       uintptr
	_, _       uint64
}

// fillNode is CUDA_MEMSET_NODE_PARAMS; unnamed is the pitch.
type fillNode struct {
	to            Pointer
	_             uint64
	value, size   uint32
	width, height uint64
}

// AddKernel adds a launch with the arguments as they are now, which is done when all nodes of after are.
func (g *Graph) AddKernel(l *Launch, grid, block Dim, shared uint32, after ...Node) (Node, error) {
	n := kernelNode{function: l.f.h, grid: [3]uint32{grid.X, max(1, grid.Y), max(1, grid.Z)}, block: [3]uint32{block.X, max(1, block.Y), max(1, block.Z)},
		shared: shared, params: address(l.mem, 0)}
	return add(g, fnGraphAddKernel, n, after)
}

// End is one end of a copy of a graph: device memory, or host memory where Host is not 0.
type End struct {
	Device Pointer
	Host   uintptr
}

func (e End) side() copySide {
	if e.Host != 0 {
		return copySide{kind: uint32(MemoryHost), host: e.Host}
	}
	return copySide{kind: uint32(MemoryDevice), device: e.Device}
}

// AddCopy adds a copy of n bytes.
func (g *Graph) AddCopy(to, from End, n uint64, after ...Node) (Node, error) {
	return add(g, fnGraphAddCopy, copyNode{from: from.side(), to: to.side(), width: n, height: 1, depth: 1}, after)
}

// AddFill adds a fill of n elements of size bytes (1, 2 or 4).
func (g *Graph) AddFill(to Pointer, size int, v uint32, n uint64, after ...Node) (Node, error) {
	return add(g, fnGraphAddFill, fillNode{to: to, value: v, size: uint32(size), width: n, height: 1}, after)
}

// add calls f(node *, graph, dependencies *, how many, parameters *[, context]).
func add[T any](g *Graph, op fn, params T, after []Node) (Node, error) {
	var l lent
	defer l.free()
	b, err := l.bytes(8 + 8*len(after))
	if err != nil {
		return 0, err
	}
	for i, n := range after {
		put(b, 8+8*i, n)
	}
	p, err := place(&l, params)
	if err != nil {
		return 0, err
	}
	var list uintptr
	if len(after) > 0 {
		list = address(b, 8)
	}
	if err := g.c.call(op, address(b, 0), g.h, list, uintptr(len(after)), p, g.c.h); err != nil {
		return 0, err
	}
	return get[Node](b, 0), nil
}

// Instantiate makes the graph ready to be launched. The caller closes the result.
func (g *Graph) Instantiate() (*Exec, error) {
	h, err := in[uintptr](g.c, fnGraphInstantiate, g.h, 0)
	if err != nil {
		return nil, err
	}
	return &Exec{g.c, h}, nil
}

// Close ends the graph; what was made of it stays.
func (g *Graph) Close() error { return g.c.call(fnGraphDestroy, g.h) }

// Exec is a graph that is ready. One launch of it runs at a time; the next one waits.
type Exec struct {
	c *Context
	h uintptr
}

// Launch queues the graph in a stream. It allocates nothing.
func (e *Exec) Launch(s *Stream) error {
	if err := e.c.enter(); err != nil {
		return err
	}
	r := e.c.d.fn[fnGraphLaunch].Call2(e.h, s.h)
	leave()
	return check(fnGraphLaunch, r)
}

// Close ends it. A launch that is not over is done nevertheless.
func (e *Exec) Close() error { return e.c.call(fnGraphExecDestroy, e.h) }
