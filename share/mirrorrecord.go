package share

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem/vec"
)

// The record is a text file to which lines are appended: "= NAME SIZE TAG CHECK" before a file is
// fetched, "+ NAME SIZE TAG INODE MTIME CTIME FILESIZE CHECK" when it is complete, "- NAME CHECK"
// when it was deleted, or not made. Lines that are torn or damaged are ignored: the file is then
// taken as not made by Mirror, and is not touched.
const (
	recordName  = ownPrefix + "mirror"
	recordMagic = "penstock mirror 1\n"
	// maxRecord bounds the record that is read, in bytes: some half a million files.
	maxRecord = 256 << 20
)

func (m *mirror) openRecord() error {
	if m.o.DryRun {
		f, err := openPlain(m.root, recordName, os.O_RDONLY, false)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		return m.readRecord(f)
	}
	f, err := openPlain(m.root, recordName, os.O_RDWR|os.O_CREATE|os.O_APPEND, true)
	if err != nil {
		return err
	}
	ok, err := sys.TryFileLock(f)
	if err == nil && !ok {
		err = fmt.Errorf("%w: another mirror works on %s", ErrBusy, m.dir)
	}
	if err == nil {
		err = m.readRecord(f)
	}
	if err != nil {
		f.Close()
		return err
	}
	m.file = f
	// A line that was torn off must not spoil the next one.
	first := "\n"
	if fi, err := f.Stat(); err == nil && fi.Size() == 0 {
		first = recordMagic
	}
	if _, err := f.WriteString(first); err != nil {
		f.Close()
		m.file = nil
		return spaceError(recordName, err)
	}
	return nil
}

func (m *mirror) readRecord(f io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return fmt.Errorf("share: mirror: %w", err)
	}
	m.record, m.begun = parseRecord(b)
	return nil
}

func parseRecord(b []byte) (record, begun map[string]mirrored) {
	record, begun = map[string]mirrored{}, map[string]mirrored{}
	b, ok := bytes.CutPrefix(b, []byte(recordMagic))
	if !ok {
		return
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		switch name, x, what := parseRecordLine(s.Text()); what {
		case lineBegun:
			begun[name] = x
		case lineComplete:
			record[name] = x
			delete(begun, name)
		case lineDeleted:
			delete(record, name)
			delete(begun, name)
		}
	}
	return
}

// What a line of a record says.
const (
	lineBegun    = '='
	lineComplete = '+'
	lineDeleted  = '-'
)

func recordLine(name string, x mirrored, what byte) string {
	b := fmt.Appendf(nil, "%c %q", what, name)
	if what != lineDeleted {
		b = fmt.Appendf(b, " %d %v", x.size, x.tag)
	}
	if what == lineComplete {
		b = fmt.Appendf(b, " %d %d %d %d", x.id.inode, x.id.modified, x.id.changed, x.id.size)
	}
	return fmt.Sprintf("%s %08x\n", b, vec.CRC32C(0, b))
}

// parseRecordLine reads a line without its end; what is 0 if it is not one.
func parseRecordLine(line string) (name string, x mirrored, what byte) {
	if len(line) < 2 {
		return
	}
	quoted, err := strconv.QuotedPrefix(line[2:])
	if err != nil {
		return
	}
	if name, err = strconv.Unquote(quoted); err != nil || name == "" || len(name) > MaxName {
		return
	}
	f := strings.Fields(line[2+len(quoted):])
	if len(f) >= 3 {
		x.size, _ = strconv.ParseUint(f[0], 10, 64)
		hex.Decode(x.tag[:], []byte(f[1][:min(len(f[1]), 32)]))
	}
	if len(f) == 7 {
		x.id.inode, _ = strconv.ParseUint(f[2], 10, 64)
		x.id.modified, _ = strconv.ParseInt(f[3], 10, 64)
		x.id.changed, _ = strconv.ParseInt(f[4], 10, 64)
		x.id.size, _ = strconv.ParseInt(f[5], 10, 64)
	}
	// One entry has one line: what is written again, checksum and all, has to be the same.
	what = line[0]
	if strings.IndexByte("=+-", what) < 0 || recordLine(name, x, what) != line+"\n" {
		return "", mirrored{}, 0
	}
	return name, x, what
}

// begin records that files are about to be fetched, such that it is known after a crash of the
// machine, too. One sync serves all that wait.
func (m *mirror) begin(es ...Entry) error {
	m.mu.Lock()
	var lines strings.Builder
	for _, e := range es {
		if x := (mirrored{size: e.Size, tag: e.Tag}); m.begun[e.Name] != x {
			m.begun[e.Name] = x
			lines.WriteString(recordLine(e.Name, x, lineBegun))
		}
	}
	if lines.Len() == 0 {
		m.mu.Unlock()
		return nil
	}
	err := m.append(lines.String())
	m.written++
	mine := m.written
	m.mu.Unlock()
	if err != nil {
		return err
	}
	m.syncing.Lock()
	defer m.syncing.Unlock()
	if m.synced >= mine {
		return nil
	}
	m.mu.Lock()
	upTo := m.written
	m.mu.Unlock()
	if err := m.file.Sync(); err != nil {
		return spaceError(recordName, err)
	}
	m.synced = upTo
	return nil
}

// made is a complete file.
type made struct {
	name string
	is   mirrored
}

// note records complete files.
func (m *mirror) note(files ...made) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var lines strings.Builder
	for _, f := range files {
		m.record[f.name] = f.is
		delete(m.begun, f.name)
		lines.WriteString(recordLine(f.name, f.is, lineComplete))
	}
	return m.append(lines.String())
}

// notMade records that a fetch has made no file, where that is certain: another process may make
// one there.
func (m *mirror) notMade(name, p string) error {
	m.mu.Lock()
	was, recorded := m.record[name]
	m.mu.Unlock()
	switch fi, err := m.look(p); {
	case errors.Is(err, fs.ErrNotExist):
		return m.forget(name)
	case err == nil && recorded && idOf(fi) == was.id:
		return m.note(made{name, was})
	}
	return nil
}

func (m *mirror) forget(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.record, name)
	delete(m.begun, name)
	if m.file == nil {
		return nil
	}
	return m.append(recordLine(name, mirrored{}, lineDeleted))
}

func (m *mirror) append(lines string) error {
	if m.broken != nil {
		return m.broken
	}
	// A torn line would spoil the one behind it: after an error nothing more is recorded.
	_, err := m.file.WriteString(lines)
	m.broken = spaceError(recordName, err)
	return m.broken
}

func (m *mirror) closeRecord() {
	if m.file != nil {
		m.file.Sync()
		m.file.Close()
	}
}
