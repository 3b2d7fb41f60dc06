package flow

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/penstock-io/penstock/packet"
)

// MaxRuleID is the highest ID of a rule: packets carry it as a mark of 24 bits, as network cards
// do. 0 means no rule.
const MaxRuleID = 1<<24 - 1

// IndirectionEntries is the length of the table that turns an RSS hash into a queue: entry hash mod
// 128 holds queue Queues[entry mod len(Queues)], as network cards are set up by default.
const IndirectionEntries = 128

// ActionKind says what an Action does.
type ActionKind uint8

// The kinds of actions. The first four end the list of a rule; the others change the packet on its
// way there.
const (
	ToQueue  ActionKind = 1 + iota // to Queue
	RSS                            // to one of Queues, by the Toeplitz hash of the 5-tuple
	Drop                           // counted and gone
	ToKernel                       // left to the kernel's network stack
	PopVLAN                        // removes the outer tag
	PushVLAN                       // adds Tag as the outer tag
	Decap                          // removes the outer headers of Tunnel.Type
	Encap                          // adds outer headers as Tunnel says
)

// Action is one step of what happens to a packet. Only the fields of its Kind are used; the others
// must be zero.
type Action struct {
	Kind   ActionKind `json:"type"`
	Queue  uint16     `json:"queue,omitzero"`
	Queues []uint16   `json:"queues,omitzero"` // 2 to IndirectionEntries; a queue named twice gets twice the share
	Tag    Tag        `json:"tag,omitzero"`
	Tunnel Tunnel     `json:"tunnel,omitzero"`
}

// Tag is a VLAN tag to push.
type Tag struct {
	ID   uint16           `json:"vlan_id"`            // 0 to 4095
	PCP  uint8            `json:"pcp,omitzero"`       // priority, 0 to 7
	DEI  bool             `json:"dei,omitzero"`       // drop eligible
	TPID packet.EtherType `json:"ethertype,omitzero"` // of the tag; 0 stands for 0x8100
}

// Tunnel is the outer headers of an encapsulation; for Decap only Type counts.
type Tunnel struct {
	Type   TunnelType `json:"type"`
	EthSrc packet.MAC `json:"outer_eth_src,omitzero"`
	EthDst packet.MAC `json:"outer_eth_dst,omitzero"`
	Src    netip.Addr `json:"outer_src,omitzero"` // IPv4 or IPv6
	Dst    netip.Addr `json:"outer_dst,omitzero"` // of the same family
	TTL    uint8      `json:"outer_ttl,omitzero"` // 0 stands for 64
	TOS    uint8      `json:"outer_tos,omitzero"` // traffic class in IPv6
	// VXLAN; 0: from the hash of the inner flow (RFC 7348 section 5)
	SrcPort uint16 `json:"outer_udp_src,omitzero"`
	DstPort uint16 `json:"outer_udp_dst,omitzero"` // VXLAN; 0 stands for 4789
	VNI     uint32 `json:"vni,omitzero"`           // VXLAN network or NVGRE subnet (TNI) of 24 bits
	FlowID  uint8  `json:"flow_id,omitzero"`       // NVGRE
	// GRE: 0x0800, 0x86dd: the IP packet without its Ethernet header; 0x6558: the whole frame; 0:
	// 0x0800
	Protocol packet.EtherType `json:"gre_protocol,omitzero"`
}

// TunnelType is a kind of encapsulation, with the numbers of packet.Tunnel. Its text is the
// lower-case name.
type TunnelType uint8

// The tunnels of rules.
const (
	VXLAN = TunnelType(packet.TunnelVXLAN)
	GRE   = TunnelType(packet.TunnelGRE)
	NVGRE = TunnelType(packet.TunnelNVGRE)
)

var tunnelNames = []string{"vxlan", "gre", "nvgre"}

func (t TunnelType) String() string { return packet.Tunnel(t).String() }

// MarshalText writes the form of String; an unknown type is an error.
func (t TunnelType) MarshalText() ([]byte, error) {
	if t < VXLAN || t > NVGRE {
		return nil, fmt.Errorf("flow: tunnel type %d has no name: expected vxlan, gre or nvgre", uint8(t))
	}
	return []byte(tunnelNames[t-1]), nil
}

// UnmarshalText reads the form of String.
func (t *TunnelType) UnmarshalText(b []byte) error {
	i := slices.Index(tunnelNames, string(b))
	if i < 0 {
		return fmt.Errorf("flow: no tunnel %q: expected vxlan, gre or nvgre", b)
	}
	*t = TunnelType(i + 1)
	return nil
}

// Terminal reports whether the action ends a list: it says where the packet goes.
func (k ActionKind) Terminal() bool { return k >= ToQueue && k <= ToKernel }

// Constructors of actions, for rules written in Go.

// Queue sends packets to queue q.
func Queue(q uint16) Action { return Action{Kind: ToQueue, Queue: q} }

// Spread sends packets to one of the queues by their Toeplitz hash.
func Spread(queues ...uint16) Action { return Action{Kind: RSS, Queues: queues} }

func (k ActionKind) String() string {
	if int(k) < len(actionNames) && k > 0 {
		return actionNames[k]
	}
	return fmt.Sprintf("action(%d)", uint8(k))
}

var actionNames = [...]string{"", "queue", "rss", "drop", "kernel", "vlan-pop", "vlan-push", "decap", "encap"}

// MarshalText writes the form of String; an unknown kind is an error.
func (k ActionKind) MarshalText() ([]byte, error) {
	if k == 0 || int(k) >= len(actionNames) {
		return nil, fmt.Errorf("flow: %v has no name", k)
	}
	return []byte(actionNames[k]), nil
}

// UnmarshalText reads the form of String.
func (k *ActionKind) UnmarshalText(b []byte) error {
	i := slices.Index(actionNames[1:], string(b))
	if i < 0 {
		return fmt.Errorf("flow: no action %q%s", b, nearest(string(b), actionNames[1:]))
	}
	*k = ActionKind(i + 1)
	return nil
}

// Rule says what happens to the packets that its Match accepts. Its fields are only data.
type Rule struct {
	ID       uint32 `json:"id,omitzero"`       // 1 to MaxRuleID, unique in a set; 0: none yet (a Table gives one)
	Name     string `json:"name,omitzero"`     // unique in a set, unless empty
	Priority int32  `json:"priority,omitzero"` // the highest wins
	// Mark is the number that packets carry in place of the ID, 0 to MaxRuleID: the user's own,
	// which several rules may share.
	Mark    Opt[uint32] `json:"mark,omitzero"`
	Match   Match       `json:"match,omitzero"`
	Actions []Action    `json:"actions"` // transformations, then one terminal action
}

// Clone returns a copy that shares nothing with r.
func (r *Rule) Clone() Rule {
	c := *r
	c.Match = r.Match.Clone()
	c.Actions = slices.Clone(r.Actions)
	for i := range c.Actions {
		c.Actions[i].Queues = slices.Clone(c.Actions[i].Queues)
	}
	return c
}

// Carried is the number that packets of the rule carry: its Mark, or else its ID.
func (r *Rule) Carried() uint32 {
	if r.Mark.Set {
		return r.Mark.Value
	}
	return r.ID
}

// Equal reports whether both rules say the same, written the same way.
func (r *Rule) Equal(o *Rule) bool {
	return r.ID == o.ID && r.Name == o.Name && r.Priority == o.Priority && r.Mark == o.Mark &&
		r.Match.Equal(&o.Match) && sameActions(r.Actions, o.Actions)
}

func sameActions(a, b []Action) bool {
	return slices.EqualFunc(a, b, func(x, y Action) bool {
		return x.Kind == y.Kind && x.Queue == y.Queue && slices.Equal(x.Queues, y.Queues) && x.Tag == y.Tag &&
			x.Tunnel == y.Tunnel
	})
}
