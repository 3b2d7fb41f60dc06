// Package place reads the names of places in S3. It links no client, so that a configuration can be
// checked by it:
//
//	bucket, prefix, err := place.Parse("s3://recordings/rack-7") // prefix is "rack-7/"
//
// Package internal/s3 uploads files there.
package place

import (
	"fmt"
	"path"
	"strings"

	"github.com/minio/minio-go/v7/pkg/s3utils"
)

const maxPrefix = 768 // bytes: with a file's name it is within the 1024 of a key

// Parse takes s3://BUCKET/PREFIX apart. The prefix is "" or ends with a slash.
func Parse(s string) (bucket, prefix string, err error) {
	rest, ok := strings.CutPrefix(s, "s3://")
	bucket, prefix, _ = strings.Cut(strings.TrimSuffix(rest, "/"), "/")
	// Stores that keep keys as files understand "..".
	if !ok || s3utils.CheckValidBucketNameStrict(bucket) != nil || s3utils.CheckValidObjectNamePrefix(prefix) != nil ||
		len(prefix) >= maxPrefix || path.Join("/", prefix) != "/"+prefix {
		return "", "", fmt.Errorf("%q names no place in a bucket: expected s3://BUCKET/PREFIX", s)
	}
	if prefix != "" {
		prefix += "/"
	}
	return bucket, prefix, nil
}
