//go:build race

package shm

// raceDetector is true in builds with -race; see Path.peerState.
const raceDetector = true
