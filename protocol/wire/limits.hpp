// Every limit of the data that one side accepts from the other. A peer that exceeds a limit ends its session.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::wire {

inline constexpr uint16_t kProtocolMajor = 2;
inline constexpr uint16_t kProtocolMinor = 0;

inline constexpr uint32_t kMessageWordsMax = 64 * 1024;  // 512 KiB: a Cap'n Proto message of one segment
inline constexpr uint64_t kBulkBytesMax = 64ull << 20;   // raw bytes behind one message; longer copies are split
// CUDA's own limit is 32,764 (CUDA 12.1, sm_70 and later).
inline constexpr uint32_t kLaunchParameterBytesMax = 32 * 1024;
inline constexpr uint32_t kLaunchAttributesMax = 64;
inline constexpr uint32_t kTriedAttributesMax = 4;       // in one function_try
inline constexpr uint32_t kNameBytesMax = 64 * 1024;     // mangled kernel and variable names
inline constexpr uint64_t kModuleBytesMax = 2ull << 30;  // one image
inline constexpr uint32_t kListItemsMax = 16 * 1024;     // items of any list in a message
inline constexpr uint32_t kRefusalBytesMax = 1024;       // the text of a refused handshake
inline constexpr uint32_t kLoginBytesMax = 4096;         // the message of a login
inline constexpr uint32_t kHandshakeTimeoutMs = 5000;
inline constexpr size_t kResumeSecretBytes = 32;  // in Welcome
inline constexpr size_t kResumeChallengeBytes = 32;
inline constexpr size_t kResumeProofBytes = 32;
inline constexpr size_t kCacheKeyBytes = 32;  // in Hello
inline constexpr uint64_t kHandlesPerSessionMax = 4u << 20;

// Host regions: pinned memory of the client that the server maps at the same addresses. The heap of a program that is
// linked to a fixed address begins a few MiB above 0. No system maps memory below 64 KiB.
inline constexpr uint64_t kRegionAddressMin = 64u << 10;
inline constexpr uint64_t kRegionAddressMax = 1ull << 47;
inline constexpr uint64_t kRegionsMax = 16 * 1024;        // of one session
inline constexpr uint64_t kRegionBytesMax = 16ull << 30;  // of all regions of one session
inline constexpr size_t kRegionPieceBytes = 256u << 10;   // changed bytes in one message

// Chunks of copies to the device that the server may store: the bytes that one digest covers, and the longest part of a
// copy that one message describes by digests.
inline constexpr size_t kChunkBytes = 256u << 10;
inline constexpr size_t kChunkDigestBytes = 32;
inline constexpr uint64_t kChunkCopyBytesMax = 16ull << 20;

inline constexpr uint64_t kOutputBytesMax = 4u << 20;  // in one notice with text that the device printed

// Managed memory: the maximum bytes of one managed_read.
inline constexpr uint64_t kManagedReadBytesMax = 4ull << 20;

// Device memory that the client caches: the maximum of blocks in one free_at_rest, and of blocks that one
// allocate_ahead requests.
inline constexpr size_t kCachedBlocksMax = 1024;
inline constexpr uint32_t kPrefetchedBlocksMax = 16;
// The maximum of blocks that one allocate_known requests, and of their bytes together.
inline constexpr uint32_t kProfiledBlocksMax = 64;
inline constexpr uint64_t kProfiledBytesMax = 1ull << 30;

// Management queries: the maximum bytes of the arguments, of a value and of a text, and items of an array.
inline constexpr size_t kManagementArgumentBytesMax = 64u << 10;
inline constexpr size_t kManagementValueBytesMax = 256u << 10;
inline constexpr uint32_t kManagementTextBytesMax = 4096;
inline constexpr uint32_t kManagementItemsMax = 4096;

// The bytes that each side stores until the other has acknowledged them.
inline constexpr size_t kSendWindowBytes = 16u << 20;
// Bulk up to this size is copied into the send window and may be posted. Larger bulk is sent from the caller's memory,
// and the call waits.
inline constexpr size_t kPostedBulkBytesMax = 256u << 10;
// The maximum of unacknowledged bytes of such larger bulk that a client has in flight.
inline constexpr size_t kBulkWindowBytes = 256u << 20;
// The receiver sends an acknowledgement after at most this many bytes.
inline constexpr size_t kAcknowledgeBytes = 2u << 20;
// The receiver also sends one after this many bytes of frames that are at most kShortFrameBytesMax long. The sender
// then reuses the memory of these frames before it has left the sender's cache.
inline constexpr size_t kAcknowledgeShortFrameBytes = 64u << 10, kShortFrameBytesMax = 16u << 10;

}  // namespace gpuwire::wire
