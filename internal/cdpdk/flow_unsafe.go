//go:build dpdk

package cdpdk

// #include "shim.h"
import "C"

import (
	"syscall"
	"unsafe"
)

// FlowItem is an item of a rule of rte_flow: a header that packets have, and bytes of it. Headers
// are numbered: Ethernet, VLAN, IPv4, IPv6, UDP, TCP, bytes of the payload, VXLAN, NVGRE.
type FlowItem struct {
	Header           uint8
	NoTags           bool
	Offset           int
	Spec, Last, Mask []byte // nil for none
}

// FlowAction is what a rule does. Kinds are numbered: mark, count, queue, RSS, drop, pop VLAN, push
// VLAN, set VLAN, set PCP, decapsulate VXLAN, decapsulate NVGRE.
type FlowAction struct {
	Kind   uint8
	Value  uint32
	Queues []uint16
}

// FlowRule is a rule for packets that come in.
type FlowRule struct {
	Priority uint32
	Items    []FlowItem
	Actions  []FlowAction
	RSSTypes uint64 // of the action RSS
	RSSKey   []byte // nil: the driver's
}

// Flow is a rule that a device carries out.
type Flow struct{ c *C.struct_rte_flow }

// ValidateFlow asks the driver whether it could carry out a rule (rte_flow_validate).
func (p Port) ValidateFlow(r *FlowRule) error { return p.flow("rte_flow_validate", r, nil) }

// CreateFlow has the device carry out a rule (rte_flow_create).
func (p Port) CreateFlow(r *FlowRule) (f Flow, err error) {
	err = p.flow("rte_flow_create", r, &f.c)
	return f, err
}

func (p Port) flow(call string, r *FlowRule, made **C.struct_rte_flow) error {
	items, actions := make([]C.struct_ps_item, len(r.Items)+1), make([]C.struct_ps_action, len(r.Actions)+1)
	for i, x := range r.Items {
		c := &items[i]
		c.header, c.has_spec, c.has_last, c.no_tags, c.offset = C.uint8_t(x.Header), flag(x.Spec != nil),
			flag(x.Last != nil), flag(x.NoTags), C.int32_t(x.Offset)
		fill(&c.spec, x.Spec)
		fill(&c.last, x.Last)
		fill(&c.mask, x.Mask)
	}
	for i, x := range r.Actions {
		c := &actions[i]
		if len(x.Queues) > len(c.queues) {
			return &Error{Call: call, Errno: syscall.E2BIG}
		}
		c.kind, c.value, c.n = C.uint32_t(x.Kind), C.uint32_t(x.Value), C.uint32_t(len(x.Queues))
		for k, q := range x.Queues {
			c.queues[k] = C.uint16_t(q)
		}
	}
	var why [256]C.char
	// The items point at each other only in C's own memory.
	n := C.ps_flow(p.c(), C.uint32_t(r.Priority), &items[0], C.int(len(r.Items)), &actions[0], C.int(len(r.Actions)),
		C.uint64_t(r.RSSTypes),
		(*C.uint8_t)(unsafe.SliceData(r.RSSKey)), C.uint32_t(len(r.RSSKey)), made, &why[0], C.int(len(why)))
	return p.said(call, n, &why)
}

// said is the error of a function of rte_flow, with the driver's words.
func (p Port) said(call string, n C.int, why *[256]C.char) error {
	err := p.failed(call, n)
	if e, ok := err.(*Error); ok {
		if words := C.GoString(&why[0]); words != "" {
			e.Log = words
		}
	}
	return err
}

func flag(b bool) C.uint8_t {
	if b {
		return 1
	}
	return 0
}

func fill(to *[40]C.uint8_t, from []byte) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(to)), len(to)), from)
}

// DestroyFlow ends a rule.
func (p Port) DestroyFlow(f Flow) error {
	return p.failed("rte_flow_destroy", C.ps_flow_destroy(p.c(), f.c))
}

// CountFlow is how many packets and bytes a rule with a count has taken.
func (p Port) CountFlow(f Flow) (packets, bytes uint64, err error) {
	var n, b C.uint64_t
	err = p.failed("rte_flow_query", C.ps_flow_count(p.c(), f.c, &n, &b))
	return uint64(n), uint64(b), err
}

// Isolate has the device leave to the kernel what no rule takes (rte_flow_isolate).
func (p Port) Isolate() error {
	var why [256]C.char
	return p.said("rte_flow_isolate", C.ps_flow_isolate(p.c(), 1, &why[0], C.int(len(why))), &why)
}
