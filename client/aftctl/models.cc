#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/json.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

struct ModelsFlags {
  std::string name;
  bool json = false;
  double deadline = 10;
};

// Formats a size, such as "1.5 MiB".
std::string Bytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, value, kUnits[unit]);
}

std::string MaxLength(const v1::Model& model) {
  return model.max_seq_len() == 0 ? "unlimited" : absl::StrCat(model.max_seq_len());
}

std::string Serves(const v1::Model& model) {
  switch (model.task()) {
    case v1::TASK_GENERATE:
      return absl::StrCat("generate, score, encode: vectors of ", model.vector_width());
    case v1::TASK_ENCODE:
      return absl::StrCat("encode: vectors of ", model.vector_width());
    case v1::TASK_CLASSIFY:
      return absl::StrCat("classify: ", model.labels_size(), " labels");
    default:
      return "";  // not loaded, or an unknown task of a newer server
  }
}

std::string State(const v1::Model& model) {
  const uint64_t per_token = model.state_bytes_per_token();
  return absl::StrCat(Bytes(model.state_bytes()),
                      per_token == 0 ? "" : absl::StrCat(", ", Bytes(per_token), " per token"));
}

using Row = std::vector<std::string>;

// Formats columns that are as wide as their widest cells.
std::string Table(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table;
  for (const Row& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      absl::StrAppend(&table, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    absl::StrAppend(&table, row.back(), "\n");
  }
  return table;
}

std::string ListTable(const v1::ListResponse& list) {
  std::vector<Row> rows = {{"NAME", "VERSION", "STATE", "ARCHITECTURE", "PARAMETERS", "WEIGHTS",
                            "STATE/SEQUENCE", "MAX LENGTH", "DEVICE", "SLOTS"}};
  for (const v1::Model& model : list.models()) {
    rows.push_back({model.name(), model.version(),
                    EnumWord(v1::ModelState_Name(model.state()), "MODEL_STATE_"),
                    model.architecture(), absl::StrCat(model.parameters()),
                    absl::StrCat(Bytes(model.weight_bytes()), " ", model.weight_format()),
                    Bytes(model.state_bytes()), MaxLength(model), model.device(),
                    absl::StrCat(model.slots())});
  }
  std::string text = Table(rows);
  for (const v1::Model& model : list.models()) {
    if (!model.error().empty()) absl::StrAppend(&text, model.name(), ": ", model.error(), "\n");
  }
  return text;
}

std::string Load(const v1::Model& model) {
  return absl::StrFormat("%d running, %d waiting, %.0f %% of the slots",
                         model.load().requests_running(), model.load().requests_waiting(),
                         100 * model.load().utilization());
}

std::string Describe(const v1::Model& model) {
  std::vector<Row> rows = {
      {"name", model.name()},
      {"version", model.version()},
      {"state", EnumWord(v1::ModelState_Name(model.state()), "MODEL_STATE_")},
      {"architecture", model.architecture()},
      {"parameters", absl::StrCat(model.parameters())},
      {"weights", absl::StrCat(Bytes(model.weight_bytes()), " ", model.weight_format())},
      {"vocabulary", absl::StrCat(model.vocab_size())},
      {"max length", MaxLength(model)},
      {"serves", Serves(model)},
      {"state of a sequence", State(model)},
      {"slots", absl::StrCat(model.slots())},
      {"load", Load(model)},
      {"device", model.device()}};
  if (!model.error().empty()) rows.push_back({"error", model.error()});
  return Table(rows);
}

int RunModels(Client& client, const ModelsFlags& flags) {
  std::string text;
  if (flags.name.empty()) {
    const auto list = client.ListModels();
    if (!list.ok()) return ReportError(list.status());
    if (flags.json) {
      for (const v1::Model& model : list->models()) text += JsonLine(model);
    } else {
      text = ForTerminal(ListTable(*list));
    }
  } else {
    const auto model = client.GetModel(flags.name);
    if (!model.ok()) return ReportError(model.status());
    text = flags.json ? JsonLine(*model) : ForTerminal(Describe(*model));
  }
  Output output;
  output.Write(text);
  return OutputCode("aftctl", output);
}

}  // namespace

Command AddModels(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<ModelsFlags>();
  app.add_option("name", flags->name, "Describe this model only");
  app.add_flag("--json", flags->json, "Print one JSON object per model and line");
  AddDeadline(app, flags->deadline);
  return [&common, flags] {
    return RunUnary(common, flags->deadline,
                    [&](Client& client) { return RunModels(client, *flags); });
  };
}

}  // namespace aft::client
