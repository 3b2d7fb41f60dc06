package control

import "github.com/penstock-io/penstock/transfer/path"

// MaxBlocks is the number of blocks that one Digest, Place or Fetch can name.
const MaxBlocks = 1024

// Block names bytes of an export of the side that is asked.
type Block struct {
	Key path.Key
	Off uint64 // from the start of the export
	Len uint64 // bytes
}

// blockSize is the size of a block on the wire.
const blockSize = path.KeySize + 8 + 8

// Digest asks for the SHA-256 (FIPS 180-4) of memory that the other side exports for reading. More
// than one request can hash takes several of the same ID, one after the other was answered: each
// continues where the one before it ended.
type Digest struct {
	// of the digest, usually that of a transfer; unique among the digests of the asking side that
	// are open
	ID   [16]byte
	At   uint64 // bytes hashed by the requests before; 0 restarts
	Last bool   // forget the digest after this request
	// Expect is what the asking side expects after this request; all zero: it does not say. The
	// side that is asked answers alike; for an offered tensor it remembers whether the two were
	// equal.
	Expect [32]byte
	Blocks []Block // at most MaxBlocks, hashed in this order
}

// Method is MethodDigest.
func (*Digest) Method() Method { return MethodDigest }
func (*Digest) name() string   { return "digest" }

func (m *Digest) fields(c *codec) {
	c.fixed("digest", m.ID[:])
	c.u64("at", &m.At)
	c.boolean("last", &m.Last)
	c.fixed("expect", m.Expect[:])
	c.blocks("blocks", &m.Blocks)
}

// blocks is a counted list of blocks.
func (c *codec) blocks(field string, v *[]Block) {
	list(c, field, v, MaxBlocks, blockSize, func(b *Block) {
		c.key("key", &b.Key)
		c.u64("offset", &b.Off)
		c.u64("length", &b.Len)
	})
}

// DigestRoom is the number of blocks of a Digest that fit into a request whose frame body is at
// most body bytes (Session.MaxBody).
func DigestRoom(body int) int {
	return min((body-requestOverhead-(16+8+1+32+2))/blockSize, MaxBlocks)
}

// DigestSum answers a Digest.
type DigestSum struct {
	Bytes uint64   // hashed until now: At and the blocks
	Sum   [32]byte // SHA-256 of these
}

func (*DigestSum) name() string { return "digest sum" }

func (m *DigestSum) fields(c *codec) {
	c.u64("bytes", &m.Bytes)
	c.fixed("sum", m.Sum[:])
}
