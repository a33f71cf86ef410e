#include "server/replay/module/module_store.hpp"

#include <algorithm>

#include "protocol/wire/limits.hpp"
#include "server/module_cache/module_cache.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

ModuleStore::Offer ModuleStore::offer(const Digest& digest, uint64_t bytes) {
  if (bytes == 0 || bytes > wire::kModuleBytesMax) throw ProtocolFault{"module_offer: an image of impossible size"};
  if (auto image = find(digest)) {
    if (image->bytes().size() != bytes) throw ProtocolFault{"module_offer: not the size of this image"};
    return Offer::have;
  }
  // An image that is offered again before it was sent starts at its first piece.
  transfers_.erase(digest);
  if (transfers_.size() >= kTransfersMax) throw ProtocolFault{"module_offer: too many images offered and not sent"};
  HostCharge charge(account_);
  if (!charge.grow(bytes)) return Offer::no_memory;
  auto image = ModuleImage::create(bytes, std::move(charge));
  if (!image) return Offer::no_memory;
  transfers_[digest] = {std::move(image), 0};
  return Offer::wanted;
}

void ModuleStore::receive(const Digest& digest, uint64_t offset, bool last, BulkReader& bulk) {
  auto found = transfers_.find(digest);
  if (found == transfers_.end()) throw ProtocolFault{"module_data: an image that was not offered"};
  Transfer& transfer = found->second;
  uint64_t size = transfer.image->bytes().size();
  if (offset != transfer.received) throw ProtocolFault{"module_data: not the piece that is due"};
  if (bulk.remaining() > size - offset) throw ProtocolFault{"module_data: more bytes than were offered"};
  uint64_t bytes = bulk.remaining();
  if (!bulk.read(transfer.image->writable().subspan(offset, bytes))) return;
  transfer.received += bytes;
  if (!last) return;
  if (transfer.received != size) throw ProtocolFault{"module_data: fewer bytes than were offered"};
  std::shared_ptr<const ModuleImage> image = transfer.image;
  transfers_.erase(found);
  if (sha256(image->bytes()) != digest) throw ProtocolFault{"module_data: the image has another digest"};
  if (cache_) cache_->insert(tenant_, digest, image->bytes());
  remember(digest, std::move(image));
}

std::shared_ptr<const ModuleImage> ModuleStore::find(const Digest& digest) {
  for (auto& [known, image] : recent_) {
    if (known == digest) return image;
  }
  auto image = cache_ ? cache_->find(tenant_, digest) : nullptr;
  if (image) remember(digest, image);
  return image;
}

void ModuleStore::remember(const Digest& digest, std::shared_ptr<const ModuleImage> image) {
  recent_bytes_ += image->bytes().size();
  recent_.emplace_back(digest, std::move(image));
  while (recent_.size() > 1 && (recent_.size() > kRecentImagesMax || recent_bytes_ > kRecentImageBytesMax)) {
    recent_bytes_ -= recent_.front().second->bytes().size();
    recent_.pop_front();
  }
}

std::shared_ptr<void*> ModuleStore::loading(uint64_t handle) const {
  auto found = loading_.find(handle);
  return found == loading_.end() ? nullptr : found->second;
}

ModuleStore::Loaded* ModuleStore::loaded(uint64_t handle) {
  auto found = loaded_.find(handle);
  return found == loaded_.end() ? nullptr : &found->second;
}

ModuleStore::Loaded& ModuleStore::add(uint64_t handle, Loaded loaded) { return loaded_[handle] = std::move(loaded); }

uint64_t ModuleStore::library_of(uint64_t kernel) const {
  auto found = libraries_.find(kernel);
  return found == libraries_.end() ? 0 : found->second;
}

const ParameterLayout* ModuleStore::parameters_of(const void* function) const {
  auto found = layouts_.find(function);
  return found == layouts_.end() ? nullptr : &found->second;
}

void ModuleStore::clear() {
  loaded_.clear();
  libraries_.clear();
  layouts_.clear();
  transfers_.clear();
  recent_.clear();
  recent_bytes_ = 0;
}

}  // namespace gpuwire::server
