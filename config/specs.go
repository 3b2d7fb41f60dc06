package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/tensor"
)

// Bytes is the memory that a region takes: its slots at their distance, in whole pages.
func (r *Region) Bytes() Size {
	if r.NumBufs <= 0 || r.BufSize <= 0 {
		return 0
	}
	align, page := max(r.Align, 1), Size(4096)
	if r.Kind == "huge" {
		page = r.PageSize
	}
	if page <= 0 {
		page = 4096
	}
	stride := (r.BufSize + align - 1) / align * align
	if stride > anyMem || Size(r.NumBufs) > (1<<62)/stride {
		return 1 << 62
	}
	return (stride*Size(r.NumBufs) + page - 1) / page * page
}

// MemKind is the kind of memory for package mem.
func (r *Region) MemKind() mem.Kind {
	switch r.Kind {
	case "huge":
		return mem.Huge
	case "host_pinned":
		return mem.HostPinned
	case "device":
		return mem.Device
	}
	return mem.Host
}

// OnGPU reports whether the memory is that of a GPU's runtime: device or host_pinned.
func (r *Region) OnGPU() bool { return r.Kind == "device" || r.Kind == "host_pinned" }

// PoolOptions are the region as a pool for mem.NewPool. Kinds of GPUs still need a Provider.
func (r *Region) PoolOptions() mem.PoolOptions {
	o := mem.PoolOptions{Name: r.Name, SlotSize: int(r.BufSize), Slots: r.NumBufs, Align: int(r.Align)}
	o.Memory.Kind = r.MemKind()
	if !r.OnGPU() {
		o.Memory.NUMANode = mem.OnNode(r.NUMA)
	}
	if r.Kind == "huge" {
		o.Memory.PageSize, o.Memory.AllowFallback = int(r.PageSize), r.Fallback
	}
	return o
}

// Stride is the distance from one slot to the next in bytes.
func (r *Region) Stride() int {
	align := max(r.Align, 1)
	return int((r.BufSize + align - 1) / align * align)
}

// PoolSpec is the region as engines are asked about it beforehand (engine.Check). Of memory of
// accelerators the distance of slots is left out: a queue that does not reach it has bounce
// buffers.
func (r *Region) PoolSpec() engine.PoolSpec {
	s := engine.PoolSpec{Name: r.Name, Kind: r.MemKind(), SlotSize: int(r.BufSize)}
	if s.Kind != mem.Device {
		s.Stride = r.Stride()
	}
	return s
}

// Rules are the flows as rules, in their order: a table adds them as they are and gives them IDs,
// while packets carry the ids of the flows (flow.Rule.Mark). The error names a flow that says
// something that no rule can say; after Load there is none, unless a placeholder is left.
func (rx *Rx) Rules() ([]flow.Rule, error) {
	out := make([]flow.Rule, 0, len(rx.Flows))
	for i := range rx.Flows {
		r, err := rx.Flows[i].rule(rx.FlexItems)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Rules are the flows as rules whose actions only change packets: unlike rules of receiving they
// end without a queue.
func (tx *Tx) Rules() []flow.Rule {
	out := make([]flow.Rule, 0, len(tx.Flows))
	for i := range tx.Flows {
		r, _ := tx.Flows[i].rule(nil) // it can only fail for flex items, which sending has not
		out = append(out, r)
	}
	return out
}

func (f *Flow) rule(items []FlexItem) (flow.Rule, error) {
	r := flow.Rule{Name: f.Name, Priority: int32(f.Priority), Mark: flow.Some(uint32(f.ID))}
	m := &f.Match
	r.Match = flow.Match{EthSrc: m.EthSrc, EthDst: m.EthDst, EtherType: m.EtherType, VLAN: m.VLAN,
		InnerVLAN: m.InnerVLAN, Src: m.IPSrc, Dst: m.IPDst,
		Proto: m.IPProto, Length: m.IPLen, ECPRI: flow.ECPRI(m.ECPRI)}
	protocol := func(p packet.Proto) {
		if !r.Match.Proto.Set {
			r.Match.Proto = flow.Some(p)
		}
	}
	if m.UDPSrc.Set || m.UDPDst.Set {
		r.Match.SrcPort, r.Match.DstPort = m.UDPSrc, m.UDPDst
		protocol(packet.ProtoUDP)
	} else if m.TCPSrc.Set || m.TCPDst.Set {
		r.Match.SrcPort, r.Match.DstPort = m.TCPSrc, m.TCPDst
		protocol(packet.ProtoTCP)
	}
	for _, w := range m.Flex {
		r.Match.Flex = append(r.Match.Flex, flow.Flex{Offset: uint16(w.Offset), Value: w.Value, Mask: w.Mask})
	}
	if m.FlexItem.Set {
		i := slices.IndexFunc(items, func(x FlexItem) bool { return x.ID == m.FlexItem.Value })
		if i < 0 {
			return r, fmt.Errorf("config: flow %q: there is no flex item %d", f.Name, m.FlexItem.Value)
		}
		mask := uint32(0xffffffff)
		if m.FlexMask.Set {
			mask = m.FlexMask.Value
		}
		r.Match.Flex = append(r.Match.Flex, flow.Flex{Offset: uint16(items[i].Offset), Value: m.FlexVal.Value,
			Mask: mask})
		protocol(packet.ProtoUDP)
		if items[i].Port != 0 && !r.Match.DstPort.Set {
			r.Match.DstPort = flow.Some(flow.One(uint16(items[i].Port)))
		}
	}
	for i := range f.Actions {
		r.Actions = append(r.Actions, f.Actions[i].action())
	}
	return r, nil
}

var actionKinds = map[string]flow.ActionKind{"queue": flow.ToQueue, "drop": flow.Drop, "kernel": flow.ToKernel,
	"vlan_pop":  flow.PopVLAN,
	"vlan_push": flow.PushVLAN, "tunnel_decap": flow.Decap, "tunnel_encap": flow.Encap}

func (a *Action) action() flow.Action {
	out := flow.Action{Kind: actionKinds[a.Type]}
	switch {
	case a.Type == "queue" && len(a.IDs) > 0:
		out.Kind = flow.RSS
		for _, id := range a.IDs {
			out.Queues = append(out.Queues, uint16(id))
		}
	case a.Type == "queue":
		out.Queue = uint16(a.ID.Value)
	case a.Type == "vlan_push":
		out.Tag = flow.Tag{ID: uint16(a.VLANID.Value), PCP: uint8(a.PCP), DEI: a.DEI != 0, TPID: a.TPID}
	case a.Tunnel == nil:
	case a.Type == "tunnel_decap":
		_ = out.Tunnel.Type.UnmarshalText([]byte(a.Tunnel.Type)) // the words are the same
	case a.Type == "tunnel_encap":
		out.Tunnel = a.Tunnel.tunnel()
	}
	return out
}

func (t *Tunnel) tunnel() flow.Tunnel {
	out := flow.Tunnel{EthSrc: t.EthSrc, EthDst: t.EthDst, Src: t.IPSrc, Dst: t.IPDst, TTL: uint8(t.TTL),
		TOS: uint8(t.TOS)}
	_ = out.Type.UnmarshalText([]byte(t.Type)) // the words are the same
	switch t.Type {
	case "vxlan":
		out.SrcPort, out.DstPort, out.VNI = uint16(t.UDPSrc), uint16(t.UDPDst), uint32(t.VNI.Value)
	case "nvgre":
		out.VNI, out.FlowID = uint32(t.TNI.Value), uint8(t.FlowID)
	case "gre":
		out.Protocol = t.Protocol
	}
	return out
}

// Desc describes the tensor, as the node does to peers. The error says what is wrong with dtype or
// shape.
func (t *Tensor) Desc() (tensor.Desc, error) {
	d, err := tensor.ParseDType(t.DType)
	if err != nil {
		return tensor.Desc{}, err
	}
	desc := tensor.Desc{DType: d}
	for _, n := range t.Shape {
		desc.Shape = append(desc.Shape, int64(n))
	}
	if len(t.Shape) == 0 {
		return desc, errors.New("the tensor has no shape")
	}
	if len(t.Shape) > tensor.MaxRank {
		return desc, fmt.Errorf("the shape has %d dimensions: more than %d", len(t.Shape), tensor.MaxRank)
	}
	if _, err := t.RowBytes(); err != nil {
		return desc, err
	}
	return desc, desc.Validate()
}

// RowBytes is the number of bytes of one row: of the payload of one packet.
func (t *Tensor) RowBytes() (int, error) {
	d, err := tensor.ParseDType(t.DType)
	if err != nil {
		return 0, err
	}
	bits := int64(d.Bits())
	for _, n := range t.Shape[min(1, len(t.Shape)):] {
		if n <= 0 || bits > math.MaxInt64/8/int64(n) {
			return 0, fmt.Errorf("rows of the shape %v are too large", t.Shape)
		}
		bits *= int64(n)
	}
	if bits%8 != 0 {
		return 0, fmt.Errorf("rows of the shape %v have %d bits of %v: not whole bytes", t.Shape, bits, d)
	}
	return int(bits / 8), nil
}

// stream reports that packets are pieces of a byte stream.
func (p *Interface) stream() bool {
	return strings.HasPrefix(p.Address, "tcp:") || p.Socket != nil &&
		(p.Socket.Local.Scheme == "tcp" || p.Socket.Remote.Scheme == "tcp")
}
