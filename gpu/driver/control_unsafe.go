package driver

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Control is the memory by which the CPU and a persistent kernel know of each other: a line of 128
// bytes that the CPU writes, and one for each group that the group writes.
// internal/kernels/cl/resident.h is the same in OpenCL C.
//
// A launch makes passes. Before each pass a group looks at the words of the CPU; it leaves when it
// is to stop, when it has made as many passes as it may, or when so many passes in a row found no
// work. It leaves between two passes, holds nothing then, and keeps what it must know in its
// checkpoint: the next launch goes on where this one was. So a launch may end at any time and
// nothing is lost.
//
// A group that leaves idle says which doorbell it had seen before its last pass. The CPU publishes
// first and rings then: where the doorbell is another one now, the group may have missed something
// and must be launched again.
//
// Words are 32 bits and wrap. The memory is MappedMemory or SharedMemory of a device with
// CapSharedAtomics.
type Control struct {
	head  *controlHead
	lines []controlLine
}

type controlHead struct {
	stop, doorbell, budget, idle, epoch, groups atomic.Uint32
	_                                           [26]uint32
}

type controlLine struct {
	state, epoch, heartbeat, done, doorbell atomic.Uint32
	_                                       [11]uint32
	checkpoint                              [CheckpointWords]uint32
}

const (
	controlLineSize = 128
	// CheckpointWords is how many words of 32 bits a group keeps between launches.
	CheckpointWords = 16
)

// A size that is wrong does not compile.
var (
	_ [controlLineSize]byte = [unsafe.Sizeof(controlHead{})]byte{}
	_ [controlLineSize]byte = [unsafe.Sizeof(controlLine{})]byte{}
)

// ControlSize is the size in bytes of the control block of a grid with so many groups.
func ControlSize(groups uint32) uint64 { return controlLineSize * (1 + uint64(groups)) }

// NewControl makes a control block of zeros in b, which is ControlSize(groups) bytes outside the Go
// heap, aligned to 8 bytes at least.
func NewControl(b []byte, groups uint32) (*Control, error) {
	if uint64(len(b)) != ControlSize(groups) || groups == 0 {
		return nil, fmt.Errorf("a control block of %d bytes for %d groups: expected %d", len(b), groups,
			ControlSize(groups))
	}
	clear(b)
	c := controlOf(b)
	c.head.groups.Store(groups)
	return c, nil
}

func controlOf(b []byte) *Control {
	n := len(b)/controlLineSize - 1
	return &Control{(*controlHead)(unsafe.Pointer(&b[0])),
		unsafe.Slice((*controlLine)(unsafe.Pointer(&b[controlLineSize])), n)}
}

// Begin is the CPU's before each launch: the groups make budget passes at most, and leave after
// idle passes in a row without work; with idle 0 they stay then. It takes back Stop.
func (c *Control) Begin(budget, idle uint32) {
	c.head.budget.Store(budget)
	c.head.idle.Store(idle)
	c.head.epoch.Add(1)
	c.head.stop.Store(0)
}

// Stop asks all groups to leave before their next pass.
func (c *Control) Stop() { c.head.stop.Store(1) }

// Ring says that there is something new. A producer publishes for the groups first and rings then.
func (c *Control) Ring() { c.head.doorbell.Add(1) }

// Groups is the number of groups.
func (c *Control) Groups() int { return len(c.lines) }

// Group is what group i has said. State is as new as the counts, or newer.
func (c *Control) Group(i int) GroupStatus {
	l := &c.lines[i]
	s := GroupStatus{Done: l.done.Load(), Heartbeat: l.heartbeat.Load()}
	if l.epoch.Load() == c.head.epoch.Load() {
		s.State = GroupState(l.state.Load())
	}
	return s
}

// Again reports whether groups that have all left have to be launched again: not all of them found
// nothing to do, or something was published after one had looked.
func (c *Control) Again() bool {
	bell := c.head.doorbell.Load()
	for i := range c.lines {
		if l := &c.lines[i]; GroupState(l.state.Load()) != GroupIdle || l.doorbell.Load() != bell {
			return true
		}
	}
	return false
}

// GroupStatus is how far a group is.
type GroupStatus struct {
	State     GroupState
	Heartbeat uint32 // passes that it has begun, of all launches
	Done      uint32 // items of work that it has done, of all launches
}

// GroupState is what a group does.
type GroupState uint32

// The states of a group, as resident.h numbers them.
const (
	GroupNew     GroupState = iota // it has not begun in this launch
	GroupRunning                   // it makes passes
	GroupStopped                   // it has left: the CPU asked for it
	GroupSpent                     // it has left: its passes were used up
	GroupIdle                      // it has left: it found nothing to do
)

var groupStates = [...]string{"new", "running", "stopped", "spent", "idle"}

func (s GroupState) String() string {
	if int(s) < len(groupStates) {
		return groupStates[s]
	}
	return fmt.Sprintf("state(%d)", uint32(s))
}

// Passes is a group's side of a Control: what resident.h is to kernels in OpenCL C.
//
//	p := driver.Enter(a[0].Bytes, group)
//	for did := uint32(0); p.Pass(did); {
//		did = ... // items of work
//	}
//	p.Leave()
type Passes struct {
	head         *controlHead
	line         *controlLine
	state        GroupState
	budget, idle uint32
	empty        uint32
	doorbell     uint32
}

// Enter begins a launch of a group, whose kernel got the control block as its argument.
func Enter(control []byte, group uint32) Passes {
	c := controlOf(control)
	p := Passes{head: c.head, line: &c.lines[group], budget: c.head.budget.Load(), idle: c.head.idle.Load(),
		empty: ^uint32(0), doorbell: c.head.doorbell.Load() - 1}
	p.line.epoch.Store(c.head.epoch.Load())
	p.line.state.Store(uint32(GroupRunning))
	return p
}

// Pass begins the next pass, or reports false: the group must leave. did is the number of items of
// work that the pass before has done. After a pass that did nothing, other goroutines run first.
func (p *Passes) Pass(did uint32) bool {
	p.empty++
	if did > 0 {
		p.empty = 0
		p.line.done.Add(did)
	}
	switch {
	case p.head.stop.Load() != 0:
		p.state = GroupStopped
		return false
	case p.budget == 0:
		p.state = GroupSpent
		return false
	case p.idle > 0 && p.empty >= p.idle:
		p.state = GroupIdle
		return false
	}
	if p.empty > 0 {
		runtime.Gosched()
	}
	p.budget--
	p.doorbell = p.head.doorbell.Load()
	p.line.heartbeat.Add(1)
	return true
}

// Checkpoint is what the group keeps between launches. It is the group's alone.
func (p *Passes) Checkpoint() *[CheckpointWords]uint32 { return &p.line.checkpoint }

// Leave ends the launch of the group, which has written its checkpoint and holds nothing that it
// has claimed.
func (p *Passes) Leave() {
	p.line.doorbell.Store(p.doorbell)
	p.line.state.Store(uint32(p.state))
}
