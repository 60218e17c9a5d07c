#include "server/app/status_page.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "aft/v1/models.pb.h"
#include "base/json.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "server/api/aft/model_service.h"
#include "server/app/status_html.h"
#include "server/http/html_page.h"

namespace aft::server {
namespace {

using nlohmann::ordered_json;

ordered_json Models(const std::vector<ModelStatus>& models) {
  v1::ListResponse list;
  for (const ModelStatus& model : models) *list.add_models() = EncodeModel(model);
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  static_cast<void>(google::protobuf::util::MessageToJsonString(list, &json, options));
  return ordered_json::parse(json)["models"];
}

ordered_json Memory(const StatusReport& report) {
  ordered_json parts = ordered_json::array();
  for (const MemoryPart& part : report.memory) {
    parts.push_back({{"use", kMemoryUses[static_cast<size_t>(part.use)]},
                     {"what", part.what},
                     {"bytes", part.bytes}});
  }
  return {{"planned", SumOf(report.memory)},
          {"limit", report.memory_limit},
          {"parts", std::move(parts)}};
}

}  // namespace

HttpPage StatusJson(const StatusReport& report) {
  const ordered_json json = {
      {"version", report.version},
      {"state", report.state},
      {"ready", report.ready},
      {"alive", report.alive},
      {"started",
       absl::FormatTime(absl::RFC3339_sec, absl::FromChrono(report.started), absl::UTCTimeZone())},
      {"address", report.address},
      {"memory", Memory(report)},
      {"models", Models(report.models)},
      {"config", report.config},
  };
  // Paths and errors may be bytes of any kind.
  return {.content_type = "application/json", .body = DumpJson(json, 2) + "\n"};
}

HttpPage ReadyPage(const StatusReport& report) {
  if (report.ready) return {.body = "ready\n"};
  std::string why = "not ready: its models do not serve as health.readiness asks\n";
  if (report.state != "ready") {
    why = absl::StrCat("not ready: the server is ", report.state, "\n");
  }
  for (const ModelStatus& model : report.models) {
    const std::string state = v1::ModelState_Name(EncodeModel(model).state());
    absl::StrAppend(&why, model.name, ": ", state, model.error.empty() ? "" : ": ", model.error,
                    "\n");
  }
  return {.status = 503, .body = std::move(why)};
}

HttpPage AlivePage(const StatusReport& report) {
  if (report.alive) return {.body = "alive\n"};
  return {.status = 503, .body = "a model has failed for good: restart the server\n"};
}

HttpPage StatusPage() {
  static const auto& page = *new HttpPage(HtmlPage(kStatusHtml));
  return page;
}

}  // namespace aft::server
