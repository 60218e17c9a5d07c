#include "client/lib/cancel_token.h"

#include <grpcpp/client_context.h>

#include <chrono>
#include <utility>
#include <vector>

namespace aft::client {

void CancelToken::Cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  for (const CancelScope* call : calls_) call->cancel_();
  changed_.NotifyAll();
}

void CancelToken::WaitFor(std::chrono::milliseconds time) const {
  const auto end = std::chrono::steady_clock::now() + time;
  MutexLock lock(mutex_);
  while (!cancelled_ && changed_.WaitUntil(mutex_, end)) continue;
}

bool CancelToken::cancelled() const {
  MutexLock lock(mutex_);
  return cancelled_;
}

CancelScope::CancelScope(CancelToken* token, grpc::ClientContext& context)
    : CancelScope(token, [&context] { context.TryCancel(); }) {}

CancelScope::CancelScope(CancelToken* token, std::function<void()> cancel)
    : token_(token), cancel_(std::move(cancel)) {
  if (token_ == nullptr) return;
  MutexLock lock(token_->mutex_);
  // A context that is cancelled before its call starts ends the call at once.
  if (token_->cancelled_) cancel_();
  token_->calls_.push_back(this);
}

CancelScope::~CancelScope() {
  if (token_ == nullptr) return;
  MutexLock lock(token_->mutex_);
  std::erase(token_->calls_, this);
}

}  // namespace aft::client
