package trust

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Tags of the entries of a POSIX ACL as the kernel has it in the extended attribute
// system.posix_acl_access: a version, then entries of a tag, permissions and an ID.
const (
	aclVersion = 2
	aclUser    = 0x02
	aclGroup   = 0x08
	aclWrite   = 0x02
)

// judgeACL says which users beside root and owners an ACL lets write; "" means none. The
// caller has checked its mask, which the file's group bits show.
func judgeACL(acl []byte, owners []int) string {
	if len(acl) < 4 || len(acl)%8 != 4 || binary.LittleEndian.Uint32(acl) != aclVersion {
		return "has a POSIX ACL that cannot be understood"
	}
	for e := range slices.Chunk(acl[4:], 8) {
		tag, id := binary.LittleEndian.Uint16(e), binary.LittleEndian.Uint32(e[4:])
		if binary.LittleEndian.Uint16(e[2:])&aclWrite == 0 {
			continue
		}
		switch {
		case tag == aclUser && id != 0 && !slices.Contains(owners, int(id)):
			return fmt.Sprintf("can be written by uid %d (POSIX ACL)", id)
		case tag == aclGroup && !trustedGroup(id):
			return fmt.Sprintf("can be written by group %d (POSIX ACL)", id)
		}
	}
	return ""
}
