#include "server/replay/copy/upload_order.hpp"

#include <algorithm>
#include <utility>

#include "server/replay/copy/ordered_driver.hpp"

namespace gpuwire::server {

UploadOrder::~UploadOrder() { forget(); }

void UploadOrder::put_before(DriverTable& table) {
  driver_ = table;
  put_upload_order_before(table, *this);
}

void UploadOrder::told(CUevent done, std::shared_ptr<const void> keeper) {
  executor_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  newest_ = done;
  keeper_ = std::move(keeper);
  ++copies_;
  pending_.store(true, std::memory_order_relaxed);
}

void UploadOrder::context_ends() {
  forget();
  left_out_.clear();
}

void UploadOrder::forget() {
  pending_.store(false, std::memory_order_relaxed);
  newest_ = nullptr;
  keeper_.reset();
  waited_.clear();
}

void UploadOrder::before_work(CUstream stream) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY ||
      std::this_thread::get_id() != executor_.load(std::memory_order_relaxed))
    return;
  if (driver_.cuEventQuery(newest_) != CUDA_ERROR_NOT_READY) return forget();
  uint64_t& waited = waited_[stream];
  if (waited == copies_) return;
  // A capturing stream does not wait: captured work runs when its graph is launched, in a stream that waits then. The
  // stream's flags may not be asked for before this, because that question invalidates a capture (driver 580).
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver_.cuStreamIsCapturing(stream, &capture) != CUDA_SUCCESS || capture != CU_STREAM_CAPTURE_STATUS_NONE) return;
  unsigned flags = 0;
  const bool beside = driver_.cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS && (flags & CU_STREAM_NON_BLOCKING) &&
                      std::find(left_out_.begin(), left_out_.end(), stream) == left_out_.end();
  // The call itself reports the fault of the stream or its context.
  if (beside) static_cast<void>(driver_.cuStreamWaitEvent(stream, newest_, CU_EVENT_WAIT_DEFAULT));
  waited = copies_;
}

}  // namespace gpuwire::server
