package share

import (
	"crypto/sha256"
	"encoding/binary"
	"io/fs"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/control"
)

// Uploads are arranged by calls (transfer.Node.Handle) to the service "share/upload/2"; the bytes go by puts into the exports
// that the answers to "room" describe. Numbers are big-endian, the first byte of a request says what it is. A refusal is a
// control.Error.
//
//	begin     1, flags u8 (1: overwrite, 2: start anew), token [16], size u64, tag [16], name (the rest)
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
// The token is random, one for each call of Upload: by it a repeated begin is known after an answer was lost.
const uploadService = "share/upload/2"

const (
	opBegin    = 1
	opVerified = 2
	opCommit   = 3
	opEnd      = 4
	opRoom     = 5

	flagOverwrite = 1
	flagAnew      = 2

	statePending  = 0
	stateReady    = 1
	stateComplete = 2

	flagSHA256 = 1
	flagLike   = 2
)

type token [16]byte

type beginRequest struct {
	overwrite, anew bool
	token           token
	claim
}

const beginFixed = 2 + 16 + 8 + 16

func (r *beginRequest) append(b []byte) []byte {
	var flags byte
	if r.overwrite {
		flags |= flagOverwrite
	}
	if r.anew {
		flags |= flagAnew
	}
	b = append(b, opBegin, flags)
	b = append(b, r.token[:]...)
	b = binary.BigEndian.AppendUint64(b, r.size)
	b = append(b, r.tag[:]...)
	return append(b, r.name...)
}

func parseBegin(b []byte) (r beginRequest, err error) {
	if len(b) <= beginFixed || b[0] != opBegin || b[1]&^(flagOverwrite|flagAnew) != 0 || !utf8.Valid(b[beginFixed:]) {
		return r, control.Errorf(control.BadRequest, "begin of an upload: %d bytes that are not one", len(b))
	}
	r.overwrite, r.anew = b[1]&flagOverwrite != 0, b[1]&flagAnew != 0
	copy(r.token[:], b[2:])
	r.size = binary.BigEndian.Uint64(b[18:])
	copy(r.tag[:], b[26:])
	r.name = string(b[beginFixed:])
	return r, nil
}

type beginAnswer struct {
	state  byte
	id     uint64
	good   uint64
	digest [16]byte
}

const readySize = 1 + 8 + 8 + 16

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
	if len(b) == 1 && (b[0] == statePending || b[0] == stateComplete) {
		return beginAnswer{state: b[0]}, true
	}
	if len(b) != readySize || b[0] != stateReady {
		return a, false
	}
	a.state = stateReady
	a.id, a.good = binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:])
	copy(a.digest[:], b[17:])
	return a, true
}

func appendRoom(b []byte, id, n uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(append(b, opRoom), id), n)
}

func appendRoomAnswer(b []byte, d path.Desc) []byte {
	return binary.BigEndian.AppendUint64(d.Key.Append(b), d.Size)
}

func parseRoomAnswer(b []byte) (d path.Desc, ok bool) {
	if len(b) != path.KeySize+8 {
		return d, false
	}
	return path.Desc{Key: path.ParseKey(b), Size: binary.BigEndian.Uint64(b[path.KeySize:]), Rights: path.Write}, true
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
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(b, uint64(l.modified.UnixNano())), uint16(l.mode.Perm()))
}

// parseLike reads the first likeSize bytes.
func parseLike(b []byte) (l like, ok bool) {
	l = like{time.Unix(0, int64(binary.BigEndian.Uint64(b))), fs.FileMode(binary.BigEndian.Uint16(b[8:]))}
	return l, l.mode&^fs.ModePerm == 0
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

const commitFixed = 1 + 8 + 16 + 1

func parseCommit(b []byte) (r commitRequest, err error) {
	bad := control.Errorf(control.BadRequest, "commit of an upload: %d bytes that are not one", len(b))
	if len(b) < commitFixed || b[0] != opCommit || b[commitFixed-1]&^(flagSHA256|flagLike) != 0 {
		return r, bad
	}
	r.id, r.digest = binary.BigEndian.Uint64(b[1:]), [16]byte(b[9:])
	rest := b[commitFixed:]
	if b[commitFixed-1]&flagSHA256 != 0 {
		if len(rest) < 32 {
			return r, bad
		}
		r.sha256, rest = (*[32]byte)(rest[:32]), rest[32:]
	}
	if b[commitFixed-1]&flagLike != 0 {
		if len(rest) < likeSize {
			return r, bad
		}
		l, ok := parseLike(rest)
		if !ok {
			return r, bad
		}
		r.like, rest = &l, rest[likeSize:]
	}
	if len(rest) > maxVia || !utf8.Valid(rest) {
		return r, bad
	}
	r.via = string(rest)
	return r, nil
}

// digestOf is a digest of chunks by their checksums: both sides can make it of what they have anyway.
func digestOf(sums []uint32) [16]byte {
	h := sha256.New()
	var b [4]byte
	for _, s := range sums {
		binary.BigEndian.PutUint32(b[:], s)
		h.Write(b[:])
	}
	return [16]byte(h.Sum(nil)[:16])
}
