package cuda

// Handle names memory or an event of this process to another process of this machine. It is inert,
// and worth nothing when its process has ended.
type Handle [64]byte

// Share is the handle of memory of [Context.Alloc]; p must be its beginning. A process that has it
// can reach the whole block of the driver in which the memory lies, which is 2 MiB for smaller
// ones: memory that is shared should be its own multiple of 2 MiB.
func (c *Context) Share(p Pointer) (Handle, error) {
	if err := c.d.Has(IPC); err != nil {
		return Handle{}, err
	}
	h, err := in[Handle](c, fnIPCGetMemHandle, uintptr(p))
	return h, about(err, "%#x", uint64(p))
}

// OpenShared maps memory of another process. It must be closed before that one frees it.
func (c *Context) OpenShared(h Handle) (Pointer, error) {
	if err := c.d.Has(IPC); err != nil {
		return 0, err
	}
	const lazyPeerAccess = 1
	var p Pointer
	err := c.withHandle(fnIPCOpenMemHandle, h, func(b []byte) { p = get[Pointer](b, 0) }, lazyPeerAccess)
	return p, err
}

// CloseShared ends OpenShared.
func (c *Context) CloseShared(p Pointer) error {
	return about(c.call(fnIPCCloseMemHandle, uintptr(p)), "%#x", uint64(p))
}

// Handle is the handle of an event with Share.
func (e *Event) Handle() (Handle, error) {
	if err := e.c.d.Has(IPC); err != nil {
		return Handle{}, err
	}
	return in[Handle](e.c, fnIPCGetEventHandle, e.h)
}

// OpenEvent opens an event of another process. The caller closes it.
func (c *Context) OpenEvent(h Handle) (*Event, error) {
	if err := c.d.Has(IPC); err != nil {
		return nil, err
	}
	e := &Event{c: c}
	if err := c.withHandle(fnIPCOpenEventHandle, h, func(b []byte) { e.h = get[uintptr](b, 0) }); err != nil {
		return nil, err
	}
	return e, nil
}

// withHandle calls a function of the form f(T *, Handle) or f(T *, Handle, int): the handle goes by
// value, in the manner of the machine.
func (c *Context) withHandle(op fn, h Handle, result func([]byte), flags ...uintptr) error {
	var l lent
	defer l.free()
	b, err := l.bytes(8 + len(h))
	if err != nil {
		return err
	}
	copy(b[8:], h[:])
	if err := c.call(op, handleArgs(b, flags)...); err != nil {
		return err
	}
	result(b)
	return nil
}
