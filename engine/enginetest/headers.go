package enginetest

import (
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// headers compares what the port says of the headers of packet i, a frame, with its bytes: what it
// knows of the type must be so, and packets of one flow must have one hash. Ports whose
// Capabilities say so know both of each packet.
func (v *receiver) headers(b *burst.Burst, i int, frame []byte) {
	v.r.t.Helper()
	var l packet.Layers
	packet.Parse(frame, &l)
	is, said := engine.TypeOf(&l), b.Type(i)
	for _, part := range []func(burst.Type) burst.Type{burst.Type.L2, burst.Type.L3, burst.Type.L4} {
		if p := part(said); p != 0 && p != part(is) || p == 0 && v.r.caps.Types && part(is) != 0 {
			v.r.t.Fatalf("the type of a packet is %v, the port says %v", is, said)
		}
	}
	hash, ok := b.Hash(i)
	if !l.HasPorts {
		return
	}
	if !ok {
		if v.r.caps.Hash {
			v.r.t.Fatal("a packet has no hash, although Capabilities.Hash says that all do")
		}
		return
	}
	flow := [2]uint16{l.SrcPort, l.DstPort}
	if want, seen := v.hashes[flow]; seen && want != hash {
		v.r.t.Fatalf("packets of one flow have the hashes %#x and %#x", want, hash)
	}
	v.hashes[flow] = hash
}
