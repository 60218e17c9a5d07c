#include "server/api/openai/stored_response.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/api/openai/error_page.h"
#include "server/api/openai/responses_exchange.h"
#include "server/call/call_report.h"

namespace aft::server::openai {

StoredResponse::StoredResponse(InferenceEnvironment& environment, Method method, std::string id,
                               Caller caller, std::map<std::string, std::string> headers)
    : environment_(environment),
      method_(method),
      id_(std::move(id)),
      arrival_(std::chrono::steady_clock::now()),
      caller_(std::move(caller)),
      headers_(std::move(headers)),
      charge_(environment.ledger, *caller_.client) {}

std::optional<HttpPage> StoredResponse::Expect(size_t bytes) {
  if (bytes == 0) return std::nullopt;
  return ErrorPage(absl::InvalidArgumentError("the request must have no body"),
                   caller_.ids.request);
}

void StoredResponse::Start(std::string /*body*/, std::shared_ptr<HttpAnswer> answer) {
  answer_ = std::move(answer);
  const std::string state_id = StateIdOf(id_);
  // An answer comes on a thread of the place where states rest.
  const auto post = [self = shared_from_this()](absl::StatusOr<std::string> json) {
    self->answer_->Post([self, json = std::move(json)] { self->Answer(json); });
  };
  if (state_id.empty()) return post(absl::NotFoundError("there is no such response"));
  if (method_ == Method::kDeleteState) {
    v1::StateServiceDeleteRequest request;
    request.set_id(state_id);
    return environment_.states.Delete(
        *caller_.client, request,
        [post, id = id_](const absl::StatusOr<v1::StateServiceDeleteResponse>& deleted) {
          if (!deleted.ok()) return post(deleted.status());
          post(Dump(OrderedJson{{"id", id}, {"object", "response"}, {"deleted", true}}));
        });
  }
  v1::Previous state;
  state.set_state_id(state_id);
  environment_.states.Find(
      *caller_.client, state,
      [post](const absl::StatusOr<std::shared_ptr<const SequenceState>>& found) {
        if (!found.ok()) return post(found.status());
        const OrderedJson response = ResponseOf(**found);
        if (response.is_object()) return post(Dump(response));
        post(absl::NotFoundError("there is no such response"));
      });
}

void StoredResponse::Answer(const absl::StatusOr<std::string>& json) {
  absl::Status status = json.status();
  if (absl::IsNotFound(status) || absl::IsFailedPrecondition(status)) {  // or none are kept
    status = absl::NotFoundError(absl::StrCat("Response with id ", Dump(Json(id_)), " not found."));
  }
  if (status.ok() && !charge_.Resize(static_cast<int64_t>(2 * json->size()))) {
    status = environment_.RefuseForMemory();
  }
  environment_.Report(method_, arrival_, status.code());
  LogRequestWithoutModel(caller_, method_, status, std::chrono::steady_clock::now() - arrival_);
  HttpPage page = status.ok() ? HttpPage{.content_type = "application/json", .body = *json}
                              : ErrorPage(status, caller_.ids.request);
  page.headers.insert(headers_.begin(), headers_.end());
  answer_->Send(std::move(page));
}

}  // namespace aft::server::openai
