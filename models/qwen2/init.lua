-- init.lua -- require 'models.qwen2': new(preset_or_options [, overrides]), presets, weights.
local model = require 'models.qwen2.model'

return {
  new = model.new,
  presets = require 'models.qwen2.presets',
  weights = require 'models.qwen2.weights',
  Qwen2 = model.Qwen2,
}
