package share

import (
	"crypto/sha256"
	"encoding/binary"
	"io/fs"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
)

// Uploads are arranged by calls (transfer.Node.Handle) to the service "share/upload/2"; the bytes
// go by puts into the exports that the answers to "room" describe. Numbers are big-endian, the
// first byte of a request says what it is. A refusal is a control.Error.
//
//	begin     1, flags u8 (1: overwrite, 2: restart), token [16], size u64, tag [16], name (the rest)
//	          -> pending u8 0, or 1, id u64, good u64, digest [16] of the good chunks;
//	             or 2: the upload of this token is complete
//	verified  2, id u64, bytes u64 from the beginning that are in place -> good u64
//	commit    3, id u64, digest [16] of all chunks, flags u8 (1: a SHA-256 of the whole file [32] follows, which is checked; 2: modified
//	          i64 in ns since 1970 and permissions u16 follow, for a new file), the path that the bytes took (the rest)
//	          -> 0: not yet, ask again; 1: the file is in its place, synced
//	end       4, id u64: the peer gives up -> empty, once the partial file is closed, or soon after
//	room      5, id u64, n u64: the step of 64 MiB that the first byte that is not verified is in, counted from 0, or the next
//	          -> key [16], size u64 of an export of that step for this peer alone, writable: until all of it is verified and another
//	             one is asked for; empty: not yet, ask again
//
// The token is random, one for each call of Upload: by it a repeated begin is known after an answer
// was lost.
const uploadService = "share/upload/2"

const (
	opBegin    = 1
	opVerified = 2
	opCommit   = 3
	opEnd      = 4
	opRoom     = 5

	flagOverwrite = 1
	flagRestart   = 2

	statePending  = 0
	stateReady    = 1
	stateComplete = 2

	flagSHA256 = 1
	flagLike   = 2
)

type token [16]byte

type beginRequest struct {
	overwrite, restart bool
	token              token
	claim
}

func (r *beginRequest) append(b []byte) []byte {
	var flags byte
	if r.overwrite {
		flags |= flagOverwrite
	}
	if r.restart {
		flags |= flagRestart
	}
	b = append(b, opBegin, flags)
	b = append(b, r.token[:]...)
	b = binary.BigEndian.AppendUint64(b, r.size)
	b = append(b, r.tag[:]...)
	return append(b, r.name...)
}

func parseBegin(b []byte) (r beginRequest, err error) {
	in := fieldsOf(b)
	op, flags := in.byte(), in.byte()
	in.expect(op == opBegin && flags&^(flagOverwrite|flagRestart) == 0)
	r.overwrite, r.restart = flags&flagOverwrite != 0, flags&flagRestart != 0
	r.token, r.size, r.tag, r.name = in.hash(), in.num(8), in.hash(), in.rest(1, len(b))
	return r, in.err("request to begin an upload")
}

type beginAnswer struct {
	state  byte
	id     uint64
	good   uint64
	digest [16]byte
}

func (a *beginAnswer) append(b []byte) []byte {
	b = append(b, a.state)
	if a.state != stateReady {
		return b
	}
	b = binary.BigEndian.AppendUint64(b, a.id)
	b = binary.BigEndian.AppendUint64(b, a.good)
	return append(b, a.digest[:]...)
}

func parseBeginAnswer(b []byte) (a beginAnswer, ok bool) {
	in := fieldsOf(b)
	if a.state = in.byte(); a.state == stateReady {
		a.id, a.good, a.digest = in.num(8), in.num(8), in.hash()
	}
	return a, in.end() && a.state <= stateComplete
}

func appendRoom(b []byte, id, n uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(append(b, opRoom), id), n)
}

func appendRoomAnswer(b []byte, d path.Desc) []byte {
	return binary.BigEndian.AppendUint64(d.Key.Append(b), d.Size)
}

func parseRoomAnswer(b []byte) (d path.Desc, ok bool) {
	in := fieldsOf(b)
	d = path.Desc{Key: in.key(), Size: in.num(8), Rights: path.Write}
	return d, in.end()
}

func appendVerified(b []byte, id, upTo uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(append(b, opVerified), id), upTo)
}

func appendEnd(b []byte, id uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, opEnd), id)
}

// commitRequest asks for the end of an upload.
type commitRequest struct {
	id     uint64
	digest [16]byte
	sha256 *[32]byte // nil: not to be checked
	like   *like     // nil: of now, and as the server makes files
	via    string    // path that the bytes took
}

// like is what a file shall have from another one.
type like struct {
	modified time.Time
	mode     fs.FileMode // permissions
}

// less is l without the permissions of a umask.
func (l like) less(umask fs.FileMode) *like {
	l.mode = (l.mode | ownerMode) &^ umask
	return &l
}

const likeSize = 8 + 2

func (l *like) append(b []byte) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(b, uint64(l.modified.UnixNano())),
		uint16(l.mode.Perm()))
}

func (r *commitRequest) append(b []byte) []byte {
	b = append(binary.BigEndian.AppendUint64(append(b, opCommit), r.id), r.digest[:]...)
	b = append(b, 0)
	flags := &b[len(b)-1]
	if r.sha256 != nil {
		*flags |= flagSHA256
	}
	if r.like != nil {
		*flags |= flagLike
	}
	if r.sha256 != nil {
		b = append(b, r.sha256[:]...)
	}
	if r.like != nil {
		b = r.like.append(b)
	}
	return append(b, r.via...)
}

func parseCommit(b []byte) (r commitRequest, err error) {
	in := fieldsOf(b)
	op := in.byte()
	r.id, r.digest = in.num(8), in.hash()
	flags := in.byte()
	in.expect(op == opCommit && flags&^(flagSHA256|flagLike) == 0)
	if flags&flagSHA256 != 0 {
		r.sha256 = new([32]byte)
		copy(r.sha256[:], in.take(32))
	}
	if flags&flagLike != 0 {
		l := in.like()
		r.like = &l
	}
	r.via = in.rest(0, maxVia)
	return r, in.err("request to commit an upload")
}

// digestOf is a digest of chunks by their checksums: both sides can make it of what they have
// anyway.
func digestOf(sums []uint32) [16]byte {
	h := sha256.New()
	var b [4]byte
	for _, s := range sums {
		binary.BigEndian.PutUint32(b[:], s)
		h.Write(b[:])
	}
	return [16]byte(h.Sum(nil)[:16])
}
