// The JSON of a dashboard, in Grafana's published types. Each panel has the options of its type, and panels,
// queries and field settings that Grafana's model leaves open (`Record<string, unknown>`) are closed: a misspelt name
// is a property too many.
import type { Dashboard as Model, FieldConfig, FieldConfigSource, Panel, RowPanel } from "@grafana/schema";
import type * as bargauge from "@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen";
import type * as gauge from "@grafana/schema/dist/esm/raw/composable/gauge/panelcfg/x/GaugePanelCfg_types.gen";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as table from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type * as text from "@grafana/schema/dist/esm/raw/composable/text/panelcfg/x/TextPanelCfg_types.gen";
import type * as timeseries from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
import type { Dataquery } from "@grafana/grafana-foundation-sdk/prometheus";

// A type as it is written in JSON: members of an enumeration by their values, and no methods.
type Json<T> = T extends string
  ? `${T}`
  : T extends (infer Each)[]
    ? Json<Each>[]
    : T extends object
      ? { [K in keyof T as T[K] extends (...some: never[]) => unknown ? never : K]: Json<T[K]> }
      : T;

type PanelOf<Kind extends string, Options, Custom = Record<string, never>> = Json<
  Omit<Panel, "type" | "options" | "fieldConfig" | "targets"> & {
    type: Kind;
    options: Options;
    targets: Dataquery[];
    fieldConfig: Omit<FieldConfigSource, "defaults"> & {
      defaults: Omit<FieldConfig, "custom"> & { custom?: Custom };
    };
  }
>;

type AnyPanel =
  | PanelOf<"timeseries", timeseries.Options, timeseries.FieldConfig>
  | PanelOf<"stat", stat.Options>
  | PanelOf<"gauge", gauge.Options>
  | PanelOf<"bargauge", bargauge.Options>
  | PanelOf<"table", table.Options, table.FieldConfig>
  | PanelOf<"text", text.Options>
  | Json<RowPanel>;

export type Dashboard = Json<Omit<Model, "panels">> & { panels: AnyPanel[] };
