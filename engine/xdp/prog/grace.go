package prog

import "github.com/cilium/ebpf"

// grace waits until no CPU runs a program any more that was replaced or taken off before. It is a
// map that holds another map: the kernel promises that a change of such a map returns only when all
// programs have ended that could still use what was there before (maybe_wait_bpf_programs in
// kernel/bpf/syscall.c). There is no call that does only this.
type grace struct{ outer, inner *ebpf.Map }

func newGrace() (*grace, error) {
	inner := &ebpf.MapSpec{Name: "penstock_grace1", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	g := new(grace)
	var err error
	if g.inner, err = ebpf.NewMap(inner); err != nil {
		return nil, explain("make a map", err)
	}
	g.outer, err = ebpf.NewMap(&ebpf.MapSpec{Name: "penstock_grace", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4,
		MaxEntries: 1, InnerMap: inner})
	if err != nil {
		g.inner.Close()
		return nil, explain("make a map of maps", err)
	}
	return g, nil
}

func (g *grace) wait() error {
	return explain("wait for the programs before", g.outer.Put(uint32(0), uint32(g.inner.FD())))
}

func (g *grace) close() {
	g.outer.Close()
	g.inner.Close()
}
