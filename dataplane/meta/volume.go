package meta

// DefaultVolume is how the backing volume beside a node's metadata is called. Entries and objects
// leave its name out, so that they are what they were before there were others.
const DefaultVolume = "default"

// VolumeName is the name of the backing volume of an object.
func VolumeName(v string) string {
	if v == "" {
		return DefaultVolume
	}
	return v
}

// VolumeOf is what an object says of its backing volume.
func VolumeOf(name string) string {
	if name == DefaultVolume {
		return ""
	}
	return name
}
