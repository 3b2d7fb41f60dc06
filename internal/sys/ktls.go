package sys

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Directions of SetTLSKeys, and what a refused record reads as.
const (
	TLSTx   = 1
	TLSRx   = 2
	EBADMSG = unix.EBADMSG
)

const (
	solTLS         = 282
	tlsVersion13   = 0x0304
	tlsAESGCM128   = 51
	tlsAESGCM128Sz = 4 + 8 + 16 + 4 + 8
)

// AttachTLS makes an established connection ready for the kernel's TLS record layer
// (Documentation/networking/tls.rst). Until SetTLSKeys was called for a direction, that direction
// stays as it is. ENOENT: the kernel has no such module.
func AttachTLS(fd int) error {
	return callError("setsockopt", "TCP_ULP tls", unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "tls"))
}

// SetTLSKeys makes the kernel encrypt (TLSTx) or decrypt (TLSRx) the connection from the next byte
// on: TLS 1.3, AES-128-GCM, beginning with the record of number seq.
func SetTLSKeys(fd, direction int, key [16]byte, iv [12]byte, seq uint64) error {
	// struct tls12_crypto_info_aes_gcm_128; its integers are the machine's.
	var b [tlsAESGCM128Sz]byte
	binary.NativeEndian.PutUint16(b[0:], tlsVersion13)
	binary.NativeEndian.PutUint16(b[2:], tlsAESGCM128)
	copy(b[4:], iv[4:])
	copy(b[12:], key[:])
	copy(b[28:], iv[:4])
	binary.BigEndian.PutUint64(b[32:], seq)
	err := unix.SetsockoptString(fd, solTLS, direction, string(b[:]))
	clear(b[:])
	return callError("setsockopt", "TLS keys", err)
}
