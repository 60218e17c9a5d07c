#pragma once

#include <array>
#include <cstddef>

namespace aft::server {

// Every method that is counted, by its name in metrics and log. First come the methods of a model:
// those that generate tokens, then the others that need an engine, then those that need none. The
// methods without a model follow. Health and reflection are not counted.
enum class Method {
  // aft.v1.InferenceService and inference.GRPCInferenceService.
  kGenerate,
  kComplete,
  kModelInfer,
  kModelStreamInfer,
  kCompletions,  // of HTTP
  kChatCompletions,
  kResponses,
  kScore,
  kEncode,
  kEmbeddings,  // of HTTP
  kClassify,
  kTokenize,
  kDetokenize,
  // aft.v1.StateService.
  kGetState,
  kListStates,
  kDeleteState,
  kExportState,
  kImportState,
  // aft.v1.ModelService.
  kListModels,
  kGetModel,
  // inference.GRPCInferenceService.
  kServerLive,
  kServerReady,
  kModelReady,
  kServerMetadata,
  kModelMetadata,
  kModelConfig,
  kModelStatistics,
  kRepositoryIndex,
  kRepositoryModelLoad,
  kRepositoryModelUnload,
  // A request over HTTP whose head was refused before its method was known.
  kHttpHead,
};

inline constexpr std::array<const char*, 31> kMethodNames = {"Generate",
                                                             "Complete",
                                                             "ModelInfer",
                                                             "ModelStreamInfer",
                                                             "Completions",
                                                             "ChatCompletions",
                                                             "Responses",
                                                             "Score",
                                                             "Encode",
                                                             "Embeddings",
                                                             "Classify",
                                                             "Tokenize",
                                                             "Detokenize",
                                                             "GetState",
                                                             "ListStates",
                                                             "DeleteState",
                                                             "ExportState",
                                                             "ImportState",
                                                             "ListModels",
                                                             "GetModel",
                                                             "ServerLive",
                                                             "ServerReady",
                                                             "ModelReady",
                                                             "ServerMetadata",
                                                             "ModelMetadata",
                                                             "ModelConfig",
                                                             "ModelStatistics",
                                                             "RepositoryIndex",
                                                             "RepositoryModelLoad",
                                                             "RepositoryModelUnload",
                                                             "HttpHead"};
inline constexpr const char* MethodName(Method method) {
  return kMethodNames[static_cast<size_t>(method)];
}

// The numbers of methods, from the first on, that generate tokens; that need an engine; that have a
// model; and of all methods.
inline constexpr size_t kGeneratingMethods = 7;
inline constexpr size_t kEngineMethods = 11;
inline constexpr size_t kModelMethods = 13;
inline constexpr size_t kMethods = kMethodNames.size();
static_assert(static_cast<size_t>(Method::kResponses) + 1 == kGeneratingMethods);
static_assert(static_cast<size_t>(Method::kClassify) + 1 == kEngineMethods);
static_assert(static_cast<size_t>(Method::kDetokenize) + 1 == kModelMethods);
static_assert(static_cast<size_t>(Method::kHttpHead) + 1 == kMethods);

}  // namespace aft::server
