package control

import (
	"fmt"

	"github.com/penstock-io/penstock/transfer/path"
)

// Bounds of fields, in bytes or elements.
const (
	MaxName         = 255      // names of nodes, exports, queues, paths
	MaxPathName     = 32       // name of a path's driver
	MaxPaths        = 16       // paths in a hello
	MaxText         = 1024     // reasons and error texts
	MaxAddr         = 1024     // address in an offer of a path
	MaxTensor       = 1024     // encoded tensor description
	MaxExtension    = 1024     // extension of a hello
	MaxNotification = 64 << 10 // body of a notification
	MaxReplaced     = 64       // sessions that one message can ask to end
	MaxIDs          = 240      // transfers that one message can ask about: they fit the smallest body
)

// Message is what a frame carries: *Hello, *Welcome, *Heartbeat, *Goodbye, *Request, *Response,
// *Notification, *Complete or *KeyRevoked.
type Message interface {
	Type() Type
	fields(*codec)
}

// Identity says who a node is and what it can do. It is part of Hello and Welcome.
type Identity struct {
	Node     [16]byte // the node, for as long as it is configured
	Instance uint64   // random at each start of the process: the epoch of everything the node exports
	Name     string   // for people; at most MaxName bytes
	Host     [16]byte // the machine: equal on both sides means that memory can be shared
	Paths    []string // drivers that the node has, best first; at most MaxPaths of 1 to MaxPathName bytes
	// MaxBody is the largest frame body that the node takes, MinBody to MaxBody bytes; 0 in Options
	// means MaxBody.
	MaxBody uint32
	// HeartbeatMillis is how often the node wants to hear from its peer, MinHeartbeatMillis to
	// MaxHeartbeatMillis. A Session fills it from Options.HeartbeatEvery.
	HeartbeatMillis uint32
	// Extension is for later versions of the handshake; receivers ignore what they do not know. At
	// most MaxExtension bytes.
	Extension []byte
}

// Bounds of Identity.HeartbeatMillis: a peer can neither make a node flood it nor silence it.
const (
	MinHeartbeatMillis = 10
	MaxHeartbeatMillis = 60_000
)

func (i *Identity) fields(c *codec) {
	c.fixed("node", i.Node[:])
	c.u64("instance", &i.Instance)
	c.text("name", &i.Name, 0, MaxName)
	c.fixed("host", i.Host[:])
	list(c, "paths", &i.Paths, MaxPaths, 2, func(name *string) { c.text("path name", name, 1, MaxPathName) })
	c.bounded("maximum body", &i.MaxBody, MinBody, MaxBody)
	c.bounded("heartbeat interval in ms", &i.HeartbeatMillis, MinHeartbeatMillis, MaxHeartbeatMillis)
	c.blob("extension", &i.Extension, MaxExtension)
}

// bounded is a u32 with limits.
func (c *codec) bounded(field string, v *uint32, min, max uint32) {
	at := c.off
	c.u32(field, v)
	if c.err == nil && (*v < min || *v > max) {
		c.off = at
		c.fail(field, "%d, expected %d to %d", *v, min, max)
	}
}

// Hello is the first message of the side that dialed.
type Hello struct {
	VersionMin, VersionMax uint16 // versions of the protocol that it speaks, VersionMin <= VersionMax, from 1
	Features               uint64 // a bit for each feature that it has
	// Session names this session: random, and known to its two ends only.
	Session [16]byte
	// Replaces names sessions that the dialer had before with the same acceptor and lost, at most
	// MaxReplaced. The acceptor ends them, so that nothing comes by them any more, before it
	// answers.
	Replaces [][16]byte
	Identity
}

// Type is TypeHello.
func (*Hello) Type() Type { return TypeHello }

func (m *Hello) fields(c *codec) {
	c.u16("version min", &m.VersionMin)
	c.u16("version max", &m.VersionMax)
	if c.err == nil && (m.VersionMin == 0 || m.VersionMin > m.VersionMax) {
		c.fail("versions", "%d to %d, expected a range that starts at 1 or more", m.VersionMin, m.VersionMax)
	}
	c.u64("features", &m.Features)
	c.fixed("session", m.Session[:])
	c.ids("replaces", &m.Replaces, MaxReplaced)
	m.Identity.fields(c)
}

// Welcome is the answer to a Hello: from now on both sides speak Version with Features.
type Welcome struct {
	Version  uint16 // the highest that both speak
	Features uint64 // those that both have
	Identity
}

// Type is TypeWelcome.
func (*Welcome) Type() Type { return TypeWelcome }

func (m *Welcome) fields(c *codec) {
	c.u16("version", &m.Version)
	c.u64("features", &m.Features)
	m.Identity.fields(c)
}

// Heartbeat shows life and measures the round trip. A session sends and takes it by itself.
type Heartbeat struct {
	Sent uint64 // the sender's clock in ns, any zero
	// Echo is the Sent that was received last plus the ns since then, so that the time it was held
	// does not count (as DLSR in RFC 3550, section 6.4.1); 0 when none was received.
	Echo uint64
}

// Type is TypeHeartbeat.
func (*Heartbeat) Type() Type { return TypeHeartbeat }

func (m *Heartbeat) fields(c *codec) {
	c.u64("sent", &m.Sent)
	c.u64("echo", &m.Echo)
}

// Goodbye ends the session; the sender sends nothing after it. Its layout is the same in all
// versions.
type Goodbye struct {
	Code   Code
	Reason string // at most MaxText bytes
}

// Type is TypeGoodbye.
func (*Goodbye) Type() Type { return TypeGoodbye }

func (m *Goodbye) fields(c *codec) {
	c.u16("code", (*uint16)(&m.Code))
	c.text("reason", &m.Reason, 0, MaxText)
}

// Request asks the peer for something. Body is what the method defines; read it with Parse.
type Request struct {
	ID     uint64 // rises with every request of the sender
	Method Method
	Body   []byte
}

// Type is TypeRequest.
func (*Request) Type() Type { return TypeRequest }

func (m *Request) fields(c *codec) {
	c.u64("id", &m.ID)
	c.u16("method", (*uint16)(&m.Method))
	c.rest("body", &m.Body, MaxBody-requestOverhead)
}

// Response answers the request with the same id. Body is what the method defines; read it with
// Parse. An error has no body.
type Response struct {
	ID   uint64
	Code Code
	Text string // at most MaxText bytes
	Body []byte

	// Method is that of the request; it is not on the wire, a Session fills it in.
	Method Method
	local  error
}

// Type is TypeResponse.
func (*Response) Type() Type { return TypeResponse }

func (m *Response) fields(c *codec) {
	c.u64("id", &m.ID)
	c.u16("code", (*uint16)(&m.Code))
	c.text("text", &m.Text, 0, MaxText)
	c.rest("body", &m.Body, MaxBody-responseOverhead)
	if c.err == nil && m.Code != OK && len(m.Body) > 0 {
		c.fail("body", "%d bytes in a response with the error %v", len(m.Body), m.Code)
	}
}

// Err is nil if the request was granted, otherwise an *Error of the peer, or why no answer will
// come: Timeout, or the error that ended the session.
func (m *Response) Err() error {
	if m.local != nil {
		return m.local
	}
	if m.Code == OK {
		return nil
	}
	return &Error{Code: m.Code, Text: m.Text, Remote: true}
}

// Body bytes that Request and Response take before the method's own.
const (
	requestOverhead  = 8 + 2
	responseOverhead = 8 + 2 + 2
)

// Notification is a one-way message of the application.
type Notification struct {
	ID   uint64 // the application's
	Body []byte // at most MaxNotification bytes
}

// Type is TypeNotification.
func (*Notification) Type() Type { return TypeNotification }

func (m *Notification) fields(c *codec) {
	c.u64("id", &m.ID)
	c.rest("body", &m.Body, MaxNotification)
}

// Complete tells the target of a transfer how it ended, for the target's future.
type Complete struct {
	ID    [16]byte // of the transfer
	Code  Code     // OK: all bytes are in place
	Text  string   // at most MaxText bytes
	Bytes uint64   // known to be in place
	Proof path.Proof
	Path  string // name of the driver; at most MaxPathName bytes
}

// Type is TypeComplete.
func (*Complete) Type() Type { return TypeComplete }

func (m *Complete) fields(c *codec) {
	c.fixed("transfer", m.ID[:])
	c.u16("code", (*uint16)(&m.Code))
	c.text("text", &m.Text, 0, MaxText)
	c.u64("bytes", &m.Bytes)
	c.u8("proof", (*uint8)(&m.Proof))
	c.text("path", &m.Path, 0, MaxPathName)
}

// Err is nil after success, otherwise an *Error of the peer.
func (m *Complete) Err() error {
	if m.Code == OK {
		return nil
	}
	return &Error{Code: m.Code, Text: m.Text, Remote: true}
}

// KeyRevoked tells that an export is gone: references to it will be refused.
type KeyRevoked struct {
	Key path.Key
}

// Type is TypeRevoked.
func (*KeyRevoked) Type() Type { return TypeRevoked }

func (m *KeyRevoked) fields(c *codec) { c.key("key", &m.Key) }

func (m Method) String() string {
	if int(m) < len(methodNames) && methodNames[m] != "" {
		return methodNames[m]
	}
	return fmt.Sprintf("method %d", uint16(m))
}
