package nvml

import (
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/internal/dl"
)

// Name is the name by which the loader finds the library.
const Name = "libnvidia-ml.so.1"

// ErrUnavailable is wrapped when there is no library, no driver or no card.
var ErrUnavailable = errors.New("NVML is not available")

// symbols is every function of the library that this package calls, with the version whose
// arguments are meant here. Those that are not needed may be missing in older libraries; what they
// would tell is then missing too.
var symbols = [functions]struct {
	name   string
	needed bool
}{
	fnInit:           {"nvmlInit_v2", true},
	fnShutdown:       {"nvmlShutdown", true},
	fnErrorString:    {"nvmlErrorString", true},
	fnDriverVersion:  {"nvmlSystemGetDriverVersion", true},
	fnByBus:          {"nvmlDeviceGetHandleByPciBusId_v2", true},
	fnName:           {"nvmlDeviceGetName", true},
	fnUUID:           {"nvmlDeviceGetUUID", true},
	fnPCI:            {"nvmlDeviceGetPciInfo_v3", true},
	fnMemory:         {"nvmlDeviceGetMemoryInfo", true},
	fnBAR1:           {"nvmlDeviceGetBAR1MemoryInfo", false},
	fnClock:          {"nvmlDeviceGetClockInfo", false},
	fnMaxClock:       {"nvmlDeviceGetMaxClockInfo", false},
	fnTemperature:    {"nvmlDeviceGetTemperature", false},
	fnPower:          {"nvmlDeviceGetPowerUsage", false},
	fnThrottle:       {"nvmlDeviceGetCurrentClocksThrottleReasons", false},
	fnPersistence:    {"nvmlDeviceGetPersistenceMode", false},
	fnLinkGeneration: {"nvmlDeviceGetCurrPcieLinkGeneration", false},
	fnLinkWidth:      {"nvmlDeviceGetCurrPcieLinkWidth", false},
	fnMaxGeneration:  {"nvmlDeviceGetMaxPcieLinkGeneration", false},
	fnMaxWidth:       {"nvmlDeviceGetMaxPcieLinkWidth", false},
	fnUtilization:    {"nvmlDeviceGetUtilizationRates", false},
}

type fn uint8

const (
	fnInit fn = iota
	fnShutdown
	fnErrorString
	fnDriverVersion
	fnByBus
	fnName
	fnUUID
	fnPCI
	fnMemory
	fnBAR1
	fnClock
	fnMaxClock
	fnTemperature
	fnPower
	fnThrottle
	fnPersistence
	fnLinkGeneration
	fnLinkWidth
	fnMaxGeneration
	fnMaxWidth
	fnUtilization
	functions
)

// Results of the library (nvmlReturn_t) that mean something here.
const (
	resultUninitialized    = 1
	resultNotSupported     = 3
	resultNoPermission     = 4
	resultNotFound         = 6
	resultDriverNotLoaded  = 9
	resultFunctionNotFound = 13
	resultGPULost          = 15
)

// Error is a call of the library that failed.
type Error struct {
	Call string // the function
	Code int    // nvmlReturn_t
	Text string // the library's words
}

// Error has the call, the library's words and what to do.
func (e *Error) Error() string {
	s := fmt.Sprintf("nvml: %s: %s (%d)", e.Call, e.Text, e.Code)
	switch e.Code {
	case resultDriverNotLoaded:
		s += ": NVIDIA's kernel module is not loaded: modprobe nvidia, or install the driver"
	case resultNoPermission:
		s += ": the process may not do this: see the rights of /dev/nvidia*"
	case resultGPULost:
		s += ": the card does not answer: see dmesg; it takes a reset or a reboot"
	}
	return s
}

// Is makes the error one of ErrUnavailable where there is no driver or card.
func (e *Error) Is(target error) bool {
	return target == ErrUnavailable && (e.Code == resultDriverNotLoaded || e.Code == resultNotFound ||
		e.Code == resultUninitialized)
}

// Library is the library, loaded and initialised. Any goroutine may use it.
type Library struct {
	lib  *dl.Library
	fn   [functions]dl.Func
	once sync.Once
	err  error
}

// Load loads and initialises the library. path is its file; "" is [Name]. The caller closes it. The
// error wraps ErrUnavailable where there is none, or no driver.
func Load(path string) (*Library, error) {
	if path == "" {
		path = Name
	}
	lib, err := dl.Open(path)
	if err != nil {
		return nil, fmt.Errorf("nvml: %w: %w: it comes with NVIDIA's driver (Debian: libnvidia-ml1)", ErrUnavailable,
			err)
	}
	l := &Library{lib: lib}
	for i, s := range symbols {
		f, err := lib.Symbol(s.name)
		if err != nil && s.needed {
			return nil, errors.Join(fmt.Errorf("nvml: %w: it has no %s: update NVIDIA's driver (%w)", ErrUnavailable,
				s.name, err), lib.Close())
		}
		l.fn[i] = f
	}
	if err := l.check(fnInit, l.fn[fnInit].Call0()); err != nil {
		return nil, errors.Join(err, lib.Close())
	}
	return l, nil
}

// Close ends the use of the library. Its devices must not be used any more. A second Close does
// nothing.
func (l *Library) Close() error {
	l.once.Do(func() { l.err = errors.Join(l.check(fnShutdown, l.fn[fnShutdown].Call0()), l.lib.Close()) })
	return l.err
}

func (l *Library) check(f fn, r uintptr) error {
	code := int(int32(r))
	if code == 0 {
		return nil
	}
	return &Error{symbols[f].name, code, dl.GoString(l.fn[fnErrorString].Call1(uintptr(code)))}
}

// DriverVersion is the version of the driver as NVIDIA numbers it: "550.54.15".
func (l *Library) DriverVersion() (string, error) {
	return l.text(fnDriverVersion, 96, func(p uintptr) uintptr { return l.fn[fnDriverVersion].Call2(p, 96) })
}

// text is what a function writes into room bytes.
func (l *Library) text(f fn, room int, call func(p uintptr) uintptr) (string, error) {
	b, err := dl.Alloc(room + 1)
	if err != nil {
		return "", err
	}
	defer dl.Free(b)
	if err := l.check(f, call(dl.Address(b))); err != nil {
		return "", err
	}
	b[room] = 0
	return dl.GoString(dl.Address(b)), nil
}
