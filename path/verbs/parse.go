package verbs

import (
	"fmt"
	"strings"
)

// transports are those that can be asked for, in the order of their numbers.
var transports = []Transport{AnyTransport, RC, UC, DC}

// Transports are the words that ParseTransport reads, for help and completion.
func Transports() []string {
	var out []string
	for _, t := range transports {
		out = append(out, t.word())
	}
	return out
}

// word is the name of a transport on command lines and in configurations.
func (t Transport) word() string {
	if t == AnyTransport {
		return "any"
	}
	return strings.ToLower(t.String())
}

// ParseTransport reads the name of a transport, in any case: one of Transports, or what String writes.
func ParseTransport(s string) (Transport, error) {
	for _, t := range transports {
		if strings.EqualFold(s, t.word()) || strings.EqualFold(s, t.String()) {
			return t, nil
		}
	}
	return 0, fmt.Errorf("verbs: transport %q: expected one of %s", s, strings.Join(Transports(), ", "))
}

var meets = [...]string{MeetAuto: "auto", MeetUD: "ud", MeetCM: "cm"}

// Meets are the words that ParseMeet reads.
func Meets() []string { return meets[:] }

// String is the name that ParseMeet reads.
func (m Meet) String() string {
	if int(m) < len(meets) {
		return meets[m]
	}
	return fmt.Sprintf("meet(%d)", uint8(m))
}

// ParseMeet reads the name of a way to meet, in any case.
func ParseMeet(s string) (Meet, error) {
	for i, w := range meets {
		if strings.EqualFold(s, w) {
			return Meet(i), nil
		}
	}
	return 0, fmt.Errorf("verbs: meet %q: expected one of %s", s, strings.Join(meets[:], ", "))
}

// MeetCMRails is the largest Options.Rails that peers can have who meet by the connection manager.
func MeetCMRails(t Transport) int { return cmRails - t.extra() }

// Check says what is wrong with options, as Probe, Listen and Dial would: values out of range. It looks at nothing else. The error wraps path.ErrUnavailable.
func (o Options) Check() error { return o.check() }

// Carrier is the adapter and the service that carries puts. It makes the path a path.Carrier.
func (p *Path) Carrier() string {
	return fmt.Sprintf("%s port %d, %s", p.dev.ctx.Name(), p.dev.port.Port, p.transport)
}
