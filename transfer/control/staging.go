package control

import "github.com/penstock-io/penstock/transfer/path"

// Staging: exports that are memory of a device (path.Desc.Device) are reached by way of slots of
// host memory that their node lends to its peer, one export for that peer alone. The peer moves
// bytes between itself and a slot by a data path, and has the node move them between the slot and
// the device.

// Bounds of Staging.
const (
	MaxSlots  = 64       // of one lease
	MaxSlot   = 64 << 20 // bytes of a slot
	MaxDevice = 255      // bytes of a device's name
)

// Stage asks for a lease of slots.
type Stage struct {
	Key path.Key // an export that they are wanted for: they are made where its device likes them
	// Small asks for the slots of small transfers, which are apart so that these do not wait for
	// large ones.
	Small bool
}

// Method is MethodStage.
func (*Stage) Method() Method { return MethodStage }
func (*Stage) name() string   { return "stage" }

func (m *Stage) fields(c *codec) {
	c.key("key", &m.Key)
	c.boolean("small", &m.Small)
}

// Staging is a lease: Slots slots of SlotSize bytes each, one behind the other from the start of an
// export of host memory. It is the asking side's until it sends Unstage, or the session ends.
type Staging struct {
	Desc     path.Desc
	SlotSize uint64 // bytes, 1 to MaxSlot
	Slots    uint32 // 1 to MaxSlots
	Device   string // whose memory it is for, in words for people; at most MaxDevice bytes
}

func (*Staging) name() string { return "staging" }

func (m *Staging) fields(c *codec) {
	c.desc(&m.Desc, false)
	at := c.off
	c.u64("slot size", &m.SlotSize)
	if c.err == nil && (m.SlotSize == 0 || m.SlotSize > MaxSlot) {
		c.off = at
		c.fail("slot size", "%d, expected 1 to %d", m.SlotSize, uint64(MaxSlot))
	}
	c.bounded("slots", &m.Slots, 1, MaxSlots)
	c.text("device", &m.Device, 0, MaxDevice)
}

// Unstage gives a lease back: the asking side has nothing under way with it. The answer means that
// its memory is free.
type Unstage struct {
	Lease path.Key // of Staging.Desc
}

// Method is MethodUnstage.
func (*Unstage) Method() Method { return MethodUnstage }
func (*Unstage) name() string   { return "unstage" }

func (m *Unstage) fields(c *codec) { c.key("lease", &m.Lease) }

// Place asks to copy the bytes of a slot, from its start, into blocks of memory of a device. The
// answer comes when they are in place, visible to every reader of the memory from then on; the slot
// is free again then, also if the answer is an error.
type Place struct {
	Lease  path.Key
	Slot   uint32  // counted from 0
	Blocks []Block // at most MaxBlocks, filled in this order
}

// Method is MethodPlace.
func (*Place) Method() Method { return MethodPlace }
func (*Place) name() string   { return "place" }

func (m *Place) fields(c *codec) {
	c.key("lease", &m.Lease)
	c.u32("slot", &m.Slot)
	c.blocks("blocks", &m.Blocks)
}

// Fetch asks to copy blocks of memory of a device into a slot, from its start. The answer comes
// when the bytes are in the slot.
type Fetch struct {
	Lease  path.Key
	Slot   uint32  // counted from 0
	Blocks []Block // at most MaxBlocks, read in this order
}

// Method is MethodFetch.
func (*Fetch) Method() Method { return MethodFetch }
func (*Fetch) name() string   { return "fetch" }

func (m *Fetch) fields(c *codec) {
	c.key("lease", &m.Lease)
	c.u32("slot", &m.Slot)
	c.blocks("blocks", &m.Blocks)
}

// StagedRoom is the number of blocks of a Place or Fetch that fit into a request whose frame body
// is at most body bytes (Session.MaxBody).
func StagedRoom(body int) int {
	return min((body-requestOverhead-(path.KeySize+4+2))/blockSize, MaxBlocks)
}
