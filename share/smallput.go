package share

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

// Small files are uploaded by batches, with a put and a call of the service "share/small/2" for
// each. Numbers are big-endian.
//
//	room   1 -> key [16], size u64 of memory for the bytes of one batch, writable for this peer alone
//	files  2, flags u8 (1: overwrite, 2: keep the room), token [16], via length u8 and text, key [16] of the room; then for each of at
//	       most 256 files, whose bytes lie in the room one behind the other: name length u8 and text, size u32, CRC-32C u32, modified
//	       i64 in ns since 1970, permissions u16
//	       -> for each file u8 0: not taken: an upload of it alone says why; 1: in its place, synced; 2: the same content was there
//	       The room takes another batch if it is kept, and ends with this call if it is not, or the answer is an error.
//	end    3, keys [16] of at most 16 rooms, which end -> empty
//
// The token is random: files that are sent again with it, because an answer was lost, have the
// answers that they had.
const (
	smallService = "share/small/2"

	opSmallRoom  = 1
	opSmallFiles = 2
	opSmallEnd   = 3

	flagKeepRoom = 2

	smallNot  = 0
	smallDone = 1
	smallSame = 2

	smallFixed = 1 + 1 + 16
	smallEntry = 4 + 4 + likeSize
	// maxRoomsOfOne bounds the rooms of one peer, maxRooms those of all. A room that was used
	// counts until its memory is given back.
	maxRoomsOfOne = 2 * putsAtOnce
	maxRooms      = 64
	maxTokens     = 256
)

// smallPut is one file of a batch.
type smallPut struct {
	name string
	size uint32
	crc  uint32
	like
}

// smallRequest is a batch of files.
type smallRequest struct {
	overwrite bool
	keep      bool // the room takes another batch
	token     token
	via       string
	key       path.Key
	files     []smallPut
}

func (r *smallRequest) append(b []byte) []byte {
	var flags byte
	if r.overwrite {
		flags = flagOverwrite
	}
	if r.keep {
		flags |= flagKeepRoom
	}
	b = append(append(b, opSmallFiles, flags), r.token[:]...)
	b = append(append(b, byte(len(r.via))), r.via...)
	b = r.key.Append(b)
	for _, f := range r.files {
		b = append(append(b, byte(len(f.name))), f.name...)
		b = binary.BigEndian.AppendUint32(b, f.size)
		b = binary.BigEndian.AppendUint32(b, f.crc)
		b = f.like.append(b)
	}
	return b
}

func parseSmall(b []byte) (r smallRequest, err error) {
	in := fieldsOf(b)
	op, flags := in.byte(), in.byte()
	in.expect(op == opSmallFiles && flags&^(flagOverwrite|flagKeepRoom) == 0)
	r.overwrite, r.keep = flags&flagOverwrite != 0, flags&flagKeepRoom != 0
	r.token, r.via, r.key = in.hash(), in.text(), in.key()
	in.expect(len(r.via) <= maxVia)
	sum := uint64(0)
	for len(in.b) > 0 {
		f := smallPut{name: in.text(), size: uint32(in.num(4)), crc: uint32(in.num(4)), like: in.like()}
		r.files, sum = append(r.files, f), sum+uint64(f.size)
		in.expect(f.name != "" && f.size <= smallFile && sum <= batchBytes && len(r.files) <= batchFiles)
	}
	return r, in.err("batch of small files")
}

// smallRoom is memory for the bytes of one batch, and then of others.
type smallRoom struct {
	peer *transfer.Peer
	used chan struct{} // closed when the last batch was dealt with, or none came

	region *mem.Region // uploads.mu guards what follows
	export *transfer.Export
	since  time.Time // it is free since then
	taken  bool      // a batch has come, or none may any more
}

// smalls are the batches of a Server. uploads.mu guards it.
type smalls struct {
	rooms  map[*smallRoom]bool
	paths  map[string]uint64 // those that a batch is putting files to, with their sizes
	bytes  uint64            // the sum of the sizes
	tokens []smallAnswer     // of the last batches
}

type smallAnswer struct {
	peer   string
	token  token
	answer []byte
}

// small answers a call of smallService.
func (s *Server) small(ctx context.Context, p *transfer.Peer, b []byte) ([]byte, error) {
	if len(b) == 1 && b[0] == opSmallRoom {
		d, err := s.smallRoom(p)
		if err != nil {
			return nil, refusal(err)
		}
		return appendRoomAnswer(nil, d), nil
	}
	up := &s.uploads
	if len(b) > 0 && b[0] == opSmallEnd {
		return nil, up.endRooms(p, fieldsOf(b[1:]))
	}
	r, err := parseSmall(b)
	if err != nil {
		return nil, err
	}
	up.mu.Lock()
	room := up.small.takeRoom(p, r.key)
	for _, a := range up.small.tokens {
		if a.peer == p.Name() && a.token == r.token {
			if room != nil {
				room.dealt(r.keep)
			}
			up.mu.Unlock()
			return a.answer, nil
		}
	}
	if room != nil {
		if s.ctx.Err() != nil {
			room.dealt(false)
			up.mu.Unlock()
			return nil, refusal(ErrClosed)
		}
		s.wg.Add(1) // Close waits: no file comes after it
	}
	up.mu.Unlock()
	if room == nil {
		return nil, control.Errorf(control.NotFound, "no such room")
	}
	defer s.wg.Done()
	answer, err := s.takeSmall(ctx, p, &r, room.region)
	up.mu.Lock()
	defer up.mu.Unlock()
	room.dealt(r.keep && err == nil)
	if err != nil {
		return nil, refusal(err)
	}
	up.small.tokens = append(up.small.tokens, smallAnswer{p.Name(), r.token, answer})
	if n := len(up.small.tokens); n > maxTokens {
		up.small.tokens = slices.Clone(up.small.tokens[n-maxTokens:])
	}
	return answer, nil
}

// dealt frees a room after a batch for the next one, or ends it. uploads.mu is held.
func (r *smallRoom) dealt(keep bool) {
	if r.since = time.Now(); keep {
		r.taken = false
	} else {
		close(r.used)
	}
}

// endRooms ends rooms of a peer by their keys. One that it has not, or that a batch is in, is
// passed over.
func (up *uploads) endRooms(p *transfer.Peer, keys *fields) error {
	keys.expect(len(keys.b)%path.KeySize == 0 && len(keys.b) <= maxRoomsOfOne*path.KeySize)
	up.mu.Lock()
	defer up.mu.Unlock()
	for len(keys.b) > 0 {
		if r := up.small.takeRoom(p, keys.key()); r != nil {
			r.dealt(false)
		}
	}
	return keys.err("request to end rooms")
}

// smallRoom makes memory for batches of a peer. It goes with the last of them, the peer or the
// share.
func (s *Server) smallRoom(p *transfer.Peer) (d path.Desc, err error) {
	r := &smallRoom{peer: p, since: time.Now(), used: make(chan struct{})}
	if err := s.enterRoom(r); err != nil {
		return d, err
	}
	region, err := mem.Alloc(mem.Options{Name: "small files", Size: batchBytes, Lazy: true})
	var x *transfer.Export
	if err == nil {
		if x, err = s.node.Export(region.All(), transfer.ExportOptions{Rights: path.Write, Peer: p}); err != nil {
			region.Close()
		}
	}
	if err != nil {
		s.leaveRoom(r)
		return d, err
	}
	up := &s.uploads
	up.mu.Lock()
	r.region, r.export = region, x
	up.mu.Unlock()
	go func() {
		defer s.leaveRoom(r)
		select {
		case <-r.used:
		case <-p.Gone():
		case <-s.ctx.Done():
		}
		up.mu.Lock()
		r.taken = true
		up.mu.Unlock()
		// an error only says that the peer has not confirmed yet: its lease keeps the memory
		x.Revoke(context.Background())
		region.Close()
	}()
	return x.Desc(), nil
}

// enterRoom counts a room before there is memory for it, if there may be one more. Close waits for
// it until leaveRoom.
func (s *Server) enterRoom(r *smallRoom) error {
	up := &s.uploads
	up.mu.Lock()
	defer up.mu.Unlock()
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	own := 0
	for o := range up.small.rooms {
		if o.peer.Name() == r.peer.Name() {
			own++
		}
	}
	if own >= maxRoomsOfOne || len(up.small.rooms) >= maxRooms {
		for o := range up.small.rooms {
			if !o.taken && time.Since(o.since) >= up.idle { // it gives way to the next one
				o.taken = true
				close(o.used)
			}
		}
		return fmt.Errorf("%w: %d rooms are open, %d of them for this peer", ErrBusy, len(up.small.rooms), own)
	}
	up.small.rooms[r] = true
	s.wg.Add(1)
	return nil
}

func (s *Server) leaveRoom(r *smallRoom) {
	s.uploads.mu.Lock()
	delete(s.uploads.small.rooms, r)
	s.uploads.mu.Unlock()
	s.wg.Done()
}

// takeRoom gives a batch its room; nil: the peer has none with this key. uploads.mu is held.
func (s *smalls) takeRoom(p *transfer.Peer, key path.Key) *smallRoom {
	for r := range s.rooms {
		if r.peer == p && r.export != nil && r.export.Key() == key && !r.taken {
			r.taken = true
			return r
		}
	}
	return nil
}

// batchStage makes a directory for the files of one batch until they are complete, and opens and
// locks it.
func (s *Server) batchStage() (stage *os.File, done func(), err error) {
	dir, err := step(s.root, stagingDir, stagingMode)
	if err != nil {
		return nil, nil, err
	}
	var base string
	for stage == nil && err == nil { // a server that looks at it before it is locked removes it
		var id [8]byte
		rand.Read(id[:]) // never fails
		base = batchPrefix + hex.EncodeToString(id[:])
		if err = dir.Mkdir(base, stagingMode); err == nil {
			stage, err = lockDir(dir, base)
		}
	}
	if err != nil {
		dir.Close()
		return nil, nil, fmt.Errorf("share: %w", err)
	}
	return stage, func() {
		dir.RemoveAll(base)
		stage.Close()
		dir.Close()
	}, nil
}

// incoming is a file of a batch at the server.
type incoming struct {
	*smallPut
	path    string // below the root
	bytes   []byte
	base    string // where it is until it is complete
	mode    fs.FileMode
	exact   bool // mode is that of the file that is replaced, whatever the umask
	access  *access
	verdict byte
	err     error
}

// takeSmall puts the files of a batch in their places.
func (s *Server) takeSmall(ctx context.Context, p *transfer.Peer, r *smallRequest, region *mem.Region) ([]byte, error) {
	lease, err := region.Lease()
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	disk, err := s.disk()
	if err != nil {
		return nil, err
	}
	stage, done, err := s.batchStage()
	if err != nil {
		return nil, err
	}
	defer done()
	files := make([]*incoming, len(r.files))
	var taken []*incoming
	off := 0
	for i := range r.files {
		f := &incoming{smallPut: &r.files[i]}
		f.bytes = lease.Bytes()[off:][:f.size]
		off += int(f.size)
		files[i] = f
		if f.err = s.reserve(p, disk, r, f); f.err == nil {
			f.base = strconv.Itoa(i)
			taken = append(taken, f)
		}
	}
	defer s.unreserve(taken)
	several(ctx, forWriters(taken), writersAtOnce, func(files []*incoming) {
		for _, f := range files {
			if ctx.Err() != nil || s.ctx.Err() != nil || vec.CRC32C(0, f.bytes) != f.crc {
				f.err = ErrChanged
				continue
			}
			f.access = newAccess(Access{Peer: p, Name: f.name, Upload: true, Size: uint64(f.size)})
			s.begins(f.access)
			f.err = sys.WriteNew(stage, f.base, f.bytes, f.mode, f.exact, f.modified)
		}
	})
	s.placeSmall(p, r, taken, stage)
	answer := make([]byte, len(files))
	for i, f := range files {
		if f.access != nil {
			if f.access.Path = r.via; f.err == nil {
				f.access.Good = f.access.Size
			}
			s.ends(f.access, f.err)
		}
		if f.err == nil {
			f.verdict = smallDone
		}
		answer[i] = f.verdict
	}
	return answer, nil
}

// reserve checks that a file may be put in its place, and keeps uploads of the same name off it.
// What is there with the same content is the file's verdict.
func (s *Server) reserve(p *transfer.Peer, d disk, r *smallRequest, f *incoming) (err error) {
	if err := s.permitted(p, f.name, uint64(f.size)); err != nil {
		return err
	}
	if f.path, err = s.uploadPath(f.name); err != nil {
		return err
	}
	f.mode = f.smallPut.mode | ownerMode
	now, err := s.look(f.path)
	if err == nil && now.Mode().IsRegular() {
		if id := sys.Identity(now); r.overwrite && (int(id.UID) != sys.EffectiveUID() || int(id.GID) != os.Getegid()) {
			// an upload of it alone keeps them
			return fmt.Errorf("%w: %s belongs to another user or group", ErrUnsafe, f.path)
		}
		if !r.overwrite && p.Rights()&identity.Read != 0 && s.has(f) {
			f.verdict = smallSame
			return ErrExists
		}
		f.mode, f.exact = now.Mode().Perm(), true // as it was
	}
	if !errors.Is(err, fs.ErrNotExist) || s.o.FollowLinks { // there may be a link on the way
		if err := s.free(f.path, r.overwrite); err != nil {
			return err
		}
	}
	up := &s.uploads
	up.mu.Lock()
	defer up.mu.Unlock()
	if _, taken := up.small.paths[f.path]; taken || up.active[f.path] != nil {
		return ErrBusy
	}
	s.expirePartials()
	if err := s.quota(d, f.path, 1, uint64(f.size), ""); err != nil {
		// a partial upload of the same name stays, and counts
		return err
	}
	up.small.paths[f.path] = uint64(f.size)
	up.small.bytes += uint64(f.size)
	s.needDirs(f.path)
	return nil
}

func (s *Server) unreserve(files []*incoming) {
	s.uploads.mu.Lock()
	defer s.uploads.mu.Unlock()
	for _, f := range files {
		s.uploads.small.bytes -= s.uploads.small.paths[f.path]
		delete(s.uploads.small.paths, f.path)
		s.doneDirs(f.path)
	}
}

// has reports whether the content of a file is what is served under its name.
func (s *Server) has(f *incoming) bool {
	s.lookNow(s.ctx, f.path)
	s.mu.Lock()
	v, ok := s.names[f.name]
	s.mu.Unlock()
	if !ok || v.of.path != f.path || v.of.id.size != int64(f.size) {
		return false
	}
	if f.size == 0 {
		return true
	}
	lease, err := v.of.region.Lease()
	if err != nil {
		return false
	}
	defer lease.Release()
	same := false
	err = guard(f.path, func() { same = bytes.Equal(lease.Bytes()[:f.size], f.bytes) })
	return err == nil && same
}

// placeSmall gives the files of a batch their names.
func (s *Server) placeSmall(p *transfer.Peer, r *smallRequest, files []*incoming, stage *os.File) {
	var placed []*incoming
	synced := 0 // of placed
	dirs := directories{root: s.root, left: func(err error) {
		for _, f := range placed[synced:] {
			f.err = errors.Join(f.err, err)
		}
		synced = len(placed)
	}}
	for _, f := range files {
		if f.err != nil {
			continue
		}
		at, err := dirs.enter(f.path)
		s.madeDirs(f.path, err)
		if err == nil {
			err = rename(stage, f.base, at, dirs.dir, r.overwrite)
		}
		if f.err = err; err == nil {
			placed = append(placed, f)
		}
	}
	dirs.leave()
	for _, f := range placed {
		s.came(p, f.path, uint64(f.size))
	}
}
