package record

import (
	"time"

	"github.com/penstock-io/penstock/packet/pcap"
)

// A Format is what a file holds.
type Format string

// The formats. Raw is the bytes of the packets, one behind the other. NPY and Safetensors have
// batches of the stage reorder as one tensor, whose first dimension is theirs.
const (
	PcapNG      Format = "pcapng"
	Pcap        Format = "pcap"
	Raw         Format = "raw"
	NPY         Format = "npy"
	Safetensors Format = "safetensors"
)

// capture reports whether files are those of packet captures.
func (f Format) capture() bool { return f == PcapNG || f == Pcap }

// A Loss is a reason for which a packet is not in a file.
type Loss uint8

// The losses.
const (
	DiskSlow   Loss = iota // all chunks wait to be written
	DiskFull               // no room, or the user's quota is used up
	DiskError              // another error of the file
	Unreadable             // a device did not copy it, or the format cannot hold it
	NumLosses
)

var lossNames = [NumLosses]string{"disk-slow", "disk-full", "disk-error", "unreadable"}

// String is the loss as tables and comments show it.
func (l Loss) String() string { return lossNames[min(l, NumLosses-1)] }

// Options say what is recorded, and where. Name is required.
type Options struct {
	// Name is the name of the file, with the verbs %Y %m %d %H %M %S %j of strftime for the local
	// time at which it begins, and %% for a percent sign. When files are rotated, a name without
	// verbs gets a number before its extension.
	Name   string
	Format Format
	// Interface is what the files say of the origin of the packets.
	Interface pcap.Interface
	// Filter says which packets are recorded, in tcpdump's language; "": all.
	Filter string

	// Overwrite replaces a regular file that has the name, which otherwise is an error. Names with
	// a time or a number are new ones always.
	Overwrite bool

	// A file ends before it exceeds MaxBytes, behind MaxPackets, and whenever the local time is a
	// multiple of Every since midnight, also without packets; 0: never for this reason.
	MaxBytes   int64
	MaxPackets uint64
	Every      time.Duration
	// Keep is how many bytes the files of this name may take together, those of earlier runs
	// included: the recorder removes the oldest. 0: all stay.
	Keep int64

	// Ring, unless it is zero, keeps the last packets in memory. Rotate, and the first packet that
	// the interface loses, have them written to a file, and what comes in the time After.
	Ring  Ring
	After time.Duration

	// Dropped returns how many packets the interface has lost so far; nil: that is not known.
	Dropped func() uint64

	// Upload, unless it is nil, gets all whole files of this name, those of earlier runs included.
	// Keep then removes first what is uploaded.
	Upload Uploader

	Limits
}

// Stats are what a Recorder has done so far.
type Stats struct {
	Files    uint64            // that are whole
	File     string            // that is being written
	Filtered uint64            // packets that did not match the filter
	Taken    uint64            // packets that are in a file, or wait to be written
	Packets  uint64            // written
	Bytes    uint64            // of files
	Lost     [NumLosses]uint64 // packets
	Held     uint64            // packets in the ring
	Bounced  uint64            // bytes that devices copied out of their memory
	Beyond   uint64            // packets behind the end of the recording
	Err      error             // of the last write if it failed, or of a file that is not whole
	Uploads  Uploads
}

// A Snapshot is what is known of the files of a recording.
type Snapshot struct {
	File     string            `json:"file,omitempty"`     // that is being written
	Files    uint64            `json:"files"`              // that are whole
	Packets  uint64            `json:"packets"`            // written
	Bytes    uint64            `json:"bytes"`              // likewise
	Filtered uint64            `json:"filtered,omitempty"` // packets that did not match the filter
	Held     uint64            `json:"held,omitempty"`     // packets in the ring
	Bounced  uint64            `json:"bounced,omitempty"`  // bytes that devices copied out of their memory
	Lost     map[string]uint64 `json:"lost,omitempty"`     // packets, by reason
	Error    string            `json:"error,omitempty"`
	Upload   *Uploads          `json:"upload,omitempty"`
}

// Snapshot is Stats as reports show it.
func (s *Stats) Snapshot() *Snapshot {
	x := &Snapshot{File: s.File, Files: s.Files, Packets: s.Packets, Bytes: s.Bytes, Filtered: s.Filtered, Held: s.Held,
		Bounced: s.Bounced}
	for l, n := range s.Lost {
		if n > 0 {
			if x.Lost == nil {
				x.Lost = map[string]uint64{}
			}
			x.Lost[Loss(l).String()] = n
		}
	}
	if s.Err != nil {
		x.Error = s.Err.Error()
	}
	if s.Uploads.To != "" {
		x.Upload = &s.Uploads
	}
	return x
}
