package control

import (
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Method says what a request asks for.
type Method uint16

// The methods. Numbers are never used again for something else. A node answers a method that it
// does not know with Unsupported.
const (
	MethodOpenPath  Method = 1  // OpenPath -> PathOffer
	MethodLookup    Method = 2  // Lookup -> Entry
	MethodList      Method = 3  // List -> Entries
	MethodOffer     Method = 4  // Offer -> Accept
	MethodPathDown  Method = 5  // PathDown -> Empty
	MethodStatus    Method = 6  // Status -> StatusReport
	MethodDigest    Method = 7  // Digest -> DigestSum
	MethodEnd       Method = 8  // EndSessions -> Empty
	MethodDelivered Method = 9  // Delivered -> Outcomes
	MethodCall      Method = 12 // Call -> CallAnswer
	MethodStage     Method = 13 // Stage -> Staging
	MethodUnstage   Method = 14 // Unstage -> Empty
	MethodPlace     Method = 15 // Place -> Empty
	MethodFetch     Method = 16 // Fetch -> Empty
	MethodNames     Method = 17 // Names -> NamesPage
)

var methodNames = [...]string{MethodOpenPath: "open path", MethodLookup: "lookup", MethodList: "list",
	MethodOffer:    "offer",
	MethodPathDown: "path down", MethodStatus: "status", MethodDigest: "digest", MethodEnd: "end sessions",
	MethodDelivered: "delivered", MethodCall: "call",
	MethodStage: "stage", MethodUnstage: "unstage", MethodPlace: "place", MethodFetch: "fetch", MethodNames: "names"}

// Body is the body of a request or a response: a pointer to one of the structs of this file.
type Body interface {
	name() string
	fields(*codec)
}

// Query is the body of a request: *OpenPath, *Lookup, *List, *Offer, *PathDown, *Status, *Digest,
// *EndSessions, *Delivered, *Call, *Stage, *Unstage, *Place, *Fetch or *Names.
type Query interface {
	Body
	Method() Method
}

// AppendBody adds the wire form of a body to b. On error, which matches BadRequest and names the
// field, b is returned as it was.
func AppendBody(b []byte, body Body) ([]byte, error) {
	at := len(b)
	c := codec{b: b, encode: true, what: body.name()}
	body.fields(&c)
	if c.err != nil {
		return b[:at], c.err
	}
	return c.b, nil
}

// Parse reads the body of a request or a response: Parse[Lookup](req.Body). Byte slices in the
// result alias b. The error matches BadRequest, names field and offset, and is fit to be the
// answer.
func Parse[T any, P interface {
	*T
	Body
}](b []byte) (T, error) {
	var v T
	p := P(&v)
	c := codec{b: b, what: p.name()}
	p.fields(&c)
	if err := c.finish(); err != nil {
		var zero T
		return zero, err
	}
	return v, nil
}

// OpenPath asks the peer to accept a path of the named driver; this side will dial it, or connect
// its endpoint. With a Token this side accepts, and asks the peer to dial where it dialed the
// session.
type OpenPath struct {
	Path       string // driver, 1 to MaxPathName bytes
	Streams    uint32 // data connections; 0 leaves it to the path
	Window     uint32 // operations outstanding in each direction; 0 leaves it to the path
	NoChecksum bool
	// "" for the peer's node itself, otherwise the queue there that will own the path; at most
	// MaxName bytes
	Queue string
	// what the driver says of this side's end of the path (path.EndpointDriver), or nothing; at
	// most setup.MaxDescription bytes
	Endpoint []byte
	Token    setup.Token
}

// Method is MethodOpenPath.
func (*OpenPath) Method() Method { return MethodOpenPath }
func (*OpenPath) name() string   { return "open path" }

func (m *OpenPath) fields(c *codec) {
	c.text("path", &m.Path, 1, MaxPathName)
	c.u32("streams", &m.Streams)
	c.u32("window", &m.Window)
	c.boolean("no checksum", &m.NoChecksum)
	c.text("queue", &m.Queue, 0, MaxName)
	c.blob("endpoint", &m.Endpoint, setup.MaxDescription)
	c.fixed("token", m.Token[:])
}

// PathOffer says where to dial, or to which endpoint to connect.
type PathOffer struct {
	// Offer has an Addr of at most MaxAddr bytes; "" is where the session was dialed. It is the
	// zero Offer with an Endpoint, or if OpenPath had a Token.
	Offer  setup.Offer
	PathID uint64 // names the path in PathDown; chosen by the accepting side, unique on this session
	// what the driver says of the accepting side's end, if OpenPath had an endpoint; at most
	// setup.MaxDescription bytes
	Endpoint []byte
}

func (*PathOffer) name() string { return "path offer" }

func (m *PathOffer) fields(c *codec) {
	c.text("address", &m.Offer.Addr, 0, MaxAddr)
	c.fixed("token", m.Offer.Token[:])
	c.u64("path id", &m.PathID)
	c.blob("endpoint", &m.Endpoint, setup.MaxDescription)
	if c.err == nil && m.Offer.Addr != "" && len(m.Endpoint) > 0 {
		c.fail("endpoint", "of %d bytes with an address of %d: expected at most one of the two", len(m.Endpoint),
			len(m.Offer.Addr))
	}
}

// Lookup asks for the export of a name.
type Lookup struct {
	Name string // 1 to MaxName bytes
}

// Method is MethodLookup.
func (*Lookup) Method() Method { return MethodLookup }
func (*Lookup) name() string   { return "lookup" }

func (m *Lookup) fields(c *codec) { c.text("name", &m.Name, 1, MaxName) }

// Entry is one named export.
type Entry struct {
	Name       string    // 1 to MaxName bytes
	Desc       path.Desc // key, size in bytes, rights, whether it is a whole memfd, whether a device's
	Tensor     []byte    // a tensor.Desc in its binary form, or nothing; at most MaxTensor bytes
	Generation uint64    // rises when the name is given to other memory
	Tag        [16]byte  // names the content, also across restarts of the node; zero: unknown
}

func (*Entry) name() string { return "entry" }

func (m *Entry) fields(c *codec) {
	c.text("name", &m.Name, 1, MaxName)
	c.desc(&m.Desc, true)
	c.blob("tensor", &m.Tensor, MaxTensor)
	c.u64("generation", &m.Generation)
	c.fixed("tag", m.Tag[:])
}

// MinEntry is the size in bytes of the smallest Entry on the wire, whose name has one byte: a page
// of a list cannot have more entries than the body has room for these.
const MinEntry = (1 + 1) + (path.KeySize + 8 + 1 + 1 + 1) + 2 + 8 + 16

func (m *Entry) wireSize() int { return MinEntry - 1 + len(m.Name) + len(m.Tensor) }

// List asks for the names that begin with Prefix, in byte order, after the name After.
type List struct {
	Prefix string // at most MaxName bytes
	After  string // at most MaxName bytes; "" begins at the first
	Max    uint32 // entries in the answer; 0 leaves it to the peer
}

// Method is MethodList.
func (*List) Method() Method { return MethodList }
func (*List) name() string   { return "list" }

func (m *List) fields(c *codec) {
	c.text("prefix", &m.Prefix, 0, MaxName)
	c.text("after", &m.After, 0, MaxName)
	c.u32("max", &m.Max)
}

// Entries is one page of a list.
type Entries struct {
	Entries []Entry
	More    bool // there are further names: ask again, after the last one
}

func (*Entries) name() string { return "entries" }

// maxEntries is what a body can hold.
const maxEntries = MaxBody / MinEntry

func (m *Entries) fields(c *codec) {
	list(c, "entries", &m.Entries, maxEntries, MinEntry, func(e *Entry) { e.fields(c) })
	c.boolean("more", &m.More)
}

// Page takes the first entries of all that fit into a response whose frame body is at most body
// bytes (Session.MaxBody), at most max of them unless max is 0. The result shares memory with all.
func Page(all []Entry, max uint32, body int) Entries {
	room := body - responseOverhead - 2 - 1
	n := 0
	for n < len(all) && (max == 0 || n < int(max)) {
		if room -= all[n].wireSize(); room < 0 {
			break
		}
		n++
	}
	return Entries{Entries: all[:n:n], More: n < len(all)}
}

// Offer announces a named tensor that this side wants to put: the peer prepares memory for it.
type Offer struct {
	ID     [16]byte // of the transfer
	Name   string   // 1 to MaxName bytes; a label, never a path on a disk
	Size   uint64   // bytes
	Tensor []byte   // a tensor.Desc in its binary form, or nothing; at most MaxTensor bytes
	// Digest says that the bytes will be proven by a digest of the same id (MethodDigest): the
	// other side hands the tensor out only when the SHA-256 that its own memory gives is the one
	// that the asking side expects.
	Digest bool
}

// Method is MethodOffer.
func (*Offer) Method() Method { return MethodOffer }
func (*Offer) name() string   { return "offer" }

func (m *Offer) fields(c *codec) {
	c.fixed("transfer", m.ID[:])
	c.text("name", &m.Name, 1, MaxName)
	c.u64("size", &m.Size)
	c.blob("tensor", &m.Tensor, MaxTensor)
	c.boolean("digest", &m.Digest)
}

// Accept says where the offered tensor goes.
type Accept struct {
	Desc path.Desc
}

func (*Accept) name() string { return "accept" }

func (m *Accept) fields(c *codec) { c.desc(&m.Desc, false) }

// PathDown tells that a path went down here and asks the peer to fence and close it; the answer
// means that nothing comes by that path any more.
type PathDown struct {
	PathID uint64
	Reason string // at most MaxText bytes
}

// Method is MethodPathDown.
func (*PathDown) Method() Method { return MethodPathDown }
func (*PathDown) name() string   { return "path down" }

func (m *PathDown) fields(c *codec) {
	c.u64("path id", &m.PathID)
	c.text("reason", &m.Reason, 0, MaxText)
}

// EndSessions asks the peer to end sessions that the asking node had with it before and lost; the
// answer means that nothing comes by them any more.
type EndSessions struct {
	Sessions [][16]byte // at most MaxReplaced
}

// Method is MethodEnd.
func (*EndSessions) Method() Method { return MethodEnd }
func (*EndSessions) name() string   { return "end sessions" }

func (m *EndSessions) fields(c *codec) { c.ids("sessions", &m.Sessions, MaxReplaced) }

// Delivered asks which transfers of the asking side are known to be complete here: those whose
// notification came.
type Delivered struct {
	IDs [][16]byte // at most MaxIDs
}

// Method is MethodDelivered.
func (*Delivered) Method() Method { return MethodDelivered }
func (*Delivered) name() string   { return "delivered" }

func (m *Delivered) fields(c *codec) { c.ids("transfers", &m.IDs, MaxIDs) }

// Outcomes answers Delivered, in its order.
type Outcomes struct {
	Delivered []bool // at most MaxIDs
}

func (*Outcomes) name() string { return "outcomes" }

func (m *Outcomes) fields(c *codec) {
	list(c, "transfers", &m.Delivered, MaxIDs, 1, func(d *bool) { c.boolean("delivered", d) })
}

// Empty is the body of an answer that says nothing but yes.
type Empty struct{}

func (*Empty) name() string  { return "empty" }
func (*Empty) fields(*codec) {}

// MaxCall bounds the body of a Call and of its answer, in bytes.
const MaxCall = 32 << 10

// Call asks a service that a package above the node provides.
type Call struct {
	Service string // 1 to MaxName bytes
	Body    []byte // as the service defines; at most MaxCall bytes
}

// Method is MethodCall.
func (*Call) Method() Method { return MethodCall }
func (*Call) name() string   { return "call" }

func (m *Call) fields(c *codec) {
	c.text("service", &m.Service, 1, MaxName)
	c.blob("body", &m.Body, MaxCall)
}

// CallAnswer is what a service says.
type CallAnswer struct {
	Body []byte // as the service defines; at most MaxCall bytes
}

func (*CallAnswer) name() string { return "call answer" }

func (m *CallAnswer) fields(c *codec) { c.blob("body", &m.Body, MaxCall) }
